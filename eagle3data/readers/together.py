"""Where many small samples lie, looked up once for all arrays that are read of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.readers.documents import Documents
from eagle3data.schema.errors import CorruptionError

Integers = npt.NDArray[np.int64]


class Together:
    """Whole samples that a batch holds one after the other, and the chunks that they lie in.

    Arrays of one entry a chunk are in the order of the samples, and of a sample's chunks.

    Attributes:
        rows: of all samples.
        lengths: `[samples]` int64, rows of each.
        chunks: `[samples]` int64, of each.
        chunk_rows: `[samples]` int64, what one of its chunks holds; data sets differ in it.
        sample: `[chunks]` int64, which one it is of.
        at: `[chunks]` int64, its place in its sample.
        used: `[chunks]` int64, rows of it that are the sample's; fill values follow.
        behind: `[chunks]` int64, the samples' rows that come after it.
    """

    def __init__(self, documents: Documents, members: Sequence[int]) -> None:
        """Look them up; `is_whole` says whether they can be read like this.

        Args:
            documents: what the batch is made of.
            members: some of them, in the order in which the batch holds them.
        """
        which = np.asarray(members)
        numbers, rows = documents.places_in_index(which)
        self.lengths = documents.lengths[which].astype(np.int64)
        offsets, shard_rows, self.chunk_rows = np.empty((3, len(which)), np.int64)
        for number in set(numbers.tolist()):
            own, dataset = numbers == number, documents.sets[number]
            axis = dataset.manifest.storage.axis
            offsets[own] = dataset.offsets[rows[own]]
            shard_rows[own], self.chunk_rows[own] = axis.shard_tokens, axis.chunk_tokens
        shards, within = np.divmod(offsets, shard_rows)
        first = within // self.chunk_rows
        self.chunks = -(-self.lengths // self.chunk_rows)
        last = first + self.chunks
        self.is_whole = not documents.pieces_among(which) and bool(
            ((self.lengths > 0) & (last * self.chunk_rows <= shard_rows)).all()
        )
        wanted = zip(map(range, first.tolist(), last.tolist()), self.lengths.tolist(), strict=True)
        self._shards: dict[tuple[int, int], tuple[list[int], list[tuple[range, int]]]] = {}
        for at, (number, shard, one) in enumerate(
            zip(numbers.tolist(), shards.tolist(), wanted, strict=True)
        ):
            places, ranges = self._shards.setdefault((number, shard), ([], []))
            places.append(at)
            ranges.append(one)
        self._sets = documents.sets
        self.rows = int(self.lengths.sum())
        self.sample, self.at = numbered(self.chunks)
        chunk_rows = self.chunk_rows[self.sample]
        self.used = np.minimum(chunk_rows, self.lengths[self.sample] - self.at * chunk_rows)
        self.behind = self.rows - np.cumsum(self.used)

    def stored(self, array: str) -> list[npt.NDArray[np.uint8]] | None:
        """Each sample's chunks of an array, as they lie in a file that is mapped.

        Args:
            array: a name as in `layout.array_names`.

        Returns:
            `[chunks, bytes]` of each, payloads and their CRC32C. None where one is not as the
            index says: read by itself it tells what is wrong with it.
        """
        found: list[Any] = [None] * len(self.lengths)
        try:
            for (number, shard), (places, ranges) in self._shards.items():
                own = self._sets[number].shard_reader(array, shard).all_side_by_side(ranges)
                if own is None:
                    return None
                for at, chunks in zip(places, own, strict=True):
                    found[at] = chunks
        except CorruptionError:
            return None
        return found


def numbered(counts: Integers) -> tuple[Integers, Integers]:
    """For so many of each, one after the other: which it is of, and its place among those."""
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
