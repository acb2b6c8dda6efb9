"""Rows of many small samples into one buffer by two calls: one copies, one checksums the copy.

Read one by one, a pack of small samples takes Python's lock a thousand times, and each time waits
for a training loop that is busy handing out kernels. Here the lock is let go for as long as the
bytes of all of them take.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from eagle3data.readers.stored import Stored
from eagle3data.schema.crc32c import crc32c_of_beginning
from eagle3data.schema.digest import combine_crc32c, crc32c

_WORD = np.dtype(np.int64)
"""What bytes are copied as where they come in such."""
_PIECE = 16 << 10
"""Words copied at a time: torch spreads a copy of 32,768 elements over threads of its own."""

with warnings.catch_warnings():
    # torch says once a process that it can't keep an array read-only; nothing here writes.
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"\0", np.uint8))


def gather(samples: Sequence[Stored], out: npt.NDArray[Any], *, verify: bool) -> bool:
    """Copy samples into a buffer, one after the other.

    Args:
        samples: all of one array.
        out: contiguous, as large as their rows; its address and theirs may be unaligned.
        verify: compare the checksum of all that was copied with what their chunks' say.

    Returns:
        Whether it is what was written. If not, `out` means nothing, and which of them is damaged
        shows when they are read one by one.
    """
    flat = out.reshape(-1).view(np.uint8)
    whole = all(not one.used_bytes % _WORD.itemsize for one in samples)
    word = _WORD if whole and not samples[0].payload_bytes % _WORD.itemsize else np.dtype(np.uint8)
    step = _PIECE * word.itemsize
    pieces = [torch.from_numpy(piece.view(word)) for one in samples for piece in _pieces(one, step)]
    places = torch.split(torch.from_numpy(flat.view(word)), [len(piece) for piece in pieces])
    torch._foreach_copy_(places, pieces)
    return not verify or crc32c(flat) == _expected(samples)


def _pieces(sample: Stored, step: int) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of its rows, in their order."""
    last = len(sample.chunks) - 1
    for number, chunk in enumerate(sample.chunks):
        size = sample.payload_bytes if number < last else sample.used_bytes
        for start in range(0, size, step):
            yield chunk[start : min(start + step, size)]


def _expected(samples: Sequence[Stored]) -> int:
    """CRC32C of all rows, one sample's after the other's, from their chunks' own."""
    total = 0
    for sample in samples:
        size, used = sample.payload_bytes, sample.used_bytes
        *before, last = sample.chunks[:, size:].copy().view("<u4")[:, 0].tolist()
        for checksum in before:
            total = combine_crc32c(total, checksum, size)
        if used < size:
            ending = size - used
            last = crc32c_of_beginning(last, _of_fill(sample.fill, ending), ending)
        total = combine_crc32c(total, last, used)
    return total


@cache
def _of_fill(fill: bytes, size: int) -> int:
    """CRC32C of a fill value, again and again."""
    return crc32c(fill * (size // len(fill)))
