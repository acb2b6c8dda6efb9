"""Rows of many small samples into one buffer by two calls: one copies, one checksums the copy.

Read one by one, a pack of small samples takes Python's lock a thousand times, and each time waits
for a training loop that is busy handing out kernels; and while it holds the lock that loop waits.
Here the lock is let go for as long as the bytes of all of them take, and what is done while it is
held is done for all of them at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from eagle3data.readers.together import Together, numbered
from eagle3data.schema.crc32c import RowChecksums
from eagle3data.schema.digest import crc32c
from eagle3data.storage.codecs import CHECKSUM_BYTES

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""What bytes are copied as; the widest that a row is made of."""
_PIECE = (1 << 15) - 1
"""Words copied at a time: torch spreads a copy of more over threads of its own."""

with warnings.catch_warnings():
    # torch says once a process that it can't keep a buffer read-only; nothing here writes.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


class GatheredStates:
    """Some samples' rows of one array after the other, all arrays of one kind of row."""

    def __init__(self, together: Together, fill: bytes) -> None:
        """Plan it once for all arrays.

        Args:
            together: the samples.
            fill: a row of fill values, as its bytes are stored.
        """
        self._together = together
        size = len(fill)
        item = next(item for item in _WORDS if not size % item)
        self._word = _WORDS[item]
        pitch = together.chunk_rows * size + CHECKSUM_BYTES
        # A checksum is read as a word of its own, where chunks are of whole ones.
        self.can_read = together.is_whole and not (pitch % CHECKSUM_BYTES).any()
        used, step = together.used * size, _PIECE * item
        chunk, part = numbered(-(-used // step))
        starts = (together.at * pitch[together.sample])[chunk] + part * step
        self._words = (np.minimum(used[chunk] - part * step, step) // item).tolist()
        pieces = list(zip(starts.tolist(), self._words, strict=True))
        counts = np.bincount(together.sample[chunk], minlength=len(pitch))
        last = np.cumsum(counts)
        self._pieces = [
            pieces[first:stop]
            for first, stop in zip((last - counts).tolist(), last.tolist(), strict=True)
        ]
        self._checksums = _checksums(together, fill)

    def read(
        self, arrays: Sequence[str], states: npt.NDArray[Any], first: int, *, verify: bool
    ) -> list[bool]:
        """Copy them.

        Args:
            arrays: names as in `layout.array_names`, of rows as `fill`.
            states: contiguous `[arrays, T, H]`; its address may be unaligned.
            first: the row of `T` that their first goes to.
            verify: compare the checksum of all that was copied with what their chunks' say.

        Returns:
            Of each array whether it is what was written. If not, its rows mean nothing, and which
            sample is damaged shows when they are read one by one.
        """
        stored = [self._together.stored(array) if self.can_read else None for array in arrays]
        word, rows = self._word, slice(first, first + self._together.rows)
        places: list[torch.Tensor] = []
        pieces: list[torch.Tensor] = []
        for own, samples in zip(self._places(states, rows), stored, strict=True):
            if samples is None:
                continue
            places += own
            for chunks, parts in zip(samples, self._pieces, strict=True):
                data = chunks.data
                pieces += [
                    torch.frombuffer(data, dtype=word, count=count, offset=start)
                    for start, count in parts
                ]
        if pieces:
            torch._foreach_copy_(places, pieces)
        whole = [samples is not None for samples in stored]
        if verify and pieces:
            behind = [_behind(samples) for samples in stored if samples is not None]
            expected = iter(self._checksums.joined(np.array(behind)))
            whole = [
                found and crc32c(layer[rows]) == next(expected)
                for layer, found in zip(states, whole, strict=True)
            ]
        return whole

    def _places(self, states: npt.NDArray[Any], rows: slice) -> Iterator[tuple[torch.Tensor, ...]]:
        """Where the pieces of each array go, found by one call."""
        arrays, budget = states.shape[:2]
        row_words = sum(self._words) // self._together.rows
        gap = (budget - self._together.rows) * row_words
        sizes = [*self._words, gap] * arrays
        flat = states.reshape(-1).view(np.uint8)
        whole = torch.frombuffer(flat.data, dtype=self._word)
        before, after = rows.start * row_words, (budget - rows.stop) * row_words
        sizes = [before, *sizes[:-1], after]
        parts = torch.split_with_sizes(whole, sizes)
        step = len(self._words) + 1
        return (parts[at : at + step - 1] for at in range(1, len(parts) - 1, step))


def gather_tokens(
    together: Together, array: str, fill: bytes, out: npt.NDArray[Any], *, verify: bool
) -> bool:
    """Copy samples' ids or masks, one after the other, which are too small to be worth a call.

    Args:
        together: the samples, of one data set.
        array: a name as in `layout.array_names`.
        fill: a row of fill values, as its bytes are stored.
        out: contiguous `[rows]` of the array's dtype.
        verify: as in `GatheredStates.read`.

    Returns:
        As `GatheredStates.read` for one array.
    """
    rows = int(together.chunk_rows[0])
    pitch = rows * len(fill) + CHECKSUM_BYTES
    if not together.is_whole or pitch % CHECKSUM_BYTES:
        return False
    stored = together.stored(array)
    if stored is None:
        return False
    joined = np.frombuffer(b"".join([chunks.data for chunks in stored]), np.uint8)
    chunks = joined.reshape(-1, pitch)
    out[:] = chunks.view(out.dtype)[:, :rows][np.arange(rows) < together.used[:, None]]
    if not verify:
        return True
    (expected,) = _checksums(together, fill).joined(chunks.view("<u4")[None, :, -1])
    return crc32c(out) == expected


def _behind(stored: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint32]:
    """The CRC32C behind each chunk of some samples."""
    return np.concatenate([chunks.view("<u4")[:, -1] for chunks in stored])


def _checksums(together: Together, fill: bytes) -> RowChecksums:
    filled = together.chunk_rows[together.sample] - together.used
    return RowChecksums(fill, filled, together.behind, int(together.chunk_rows.max()))
