"""What an index says of many samples: its tokens, masks and ids by few calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_ID_BYTES = 4


class Stated:
    """Rows of an index, read without a call of pyarrow's for each.

    Nothing is kept but where the parts of a column lie: its `take` would join all of them first.
    """

    def __init__(self, index: pa.Table) -> None:
        """Nothing is read yet.

        Args:
            index: `INDEX_SCHEMA`.
        """
        self._index = index

    @cached_property
    def _names(self) -> _Parts:
        return _Parts(self._index["sample_id"])

    @cached_property
    def _ids(self) -> _Lists:
        return _Lists(self._index["input_ids"], 8 * _ID_BYTES)

    @cached_property
    def _masks(self) -> _Lists:
        return _Lists(self._index["loss_mask"], 1)

    def sample_id(self, row: int) -> str:
        """Name of a sample."""
        part, row = self._names.find(row)
        return str(self._names.parts[part][row].as_py())

    def tokens(
        self, rows: Sequence[int], lengths: Sequence[int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]] | None:
        """Ids and masks of some samples, one's after the other's.

        Args:
            rows: of the index.
            lengths: what each has by its `length`.

        Returns:
            `[tokens]` each; None where a list is not as long, or not of numbers alone.
        """
        ids: list[memoryview] = []
        masks: list[memoryview] = []
        bits, nbytes = [], 0
        for row, length in zip(rows, lengths, strict=True):
            id_at, mask_at = self._ids.of(row, length), self._masks.of(row, length)
            if id_at is None or mask_at is None:
                return None
            values, first = id_at
            ids.append(values[first * _ID_BYTES : (first + length) * _ID_BYTES])
            values, first = mask_at
            masks.append(values[first // 8 : -(-(first + length) // 8)])
            bits.append(8 * nbytes + first % 8)
            nbytes += len(masks[-1])
        counts = np.array(lengths)
        place = np.arange(counts.sum()) + np.repeat(bits - np.cumsum(counts) + counts, counts)
        of_bits = np.unpackbits(np.frombuffer(b"".join(masks), np.uint8), bitorder="little")
        return np.frombuffer(b"".join(ids), "<i4"), of_bits[place]


class _Parts:
    """A column's parts, and which rows each has."""

    def __init__(self, column: pa.ChunkedArray[Any]) -> None:
        self.parts = column.chunks
        self._bounds = np.cumsum([0, *map(len, self.parts)]).tolist()

    def find(self, row: int) -> tuple[int, int]:
        """The part that holds a row, and its place there."""
        part = bisect_right(self._bounds, row) - 1
        return part, row - self._bounds[part]


class _Lists(_Parts):
    """A list column's flat values, part by part."""

    def __init__(self, column: pa.ChunkedArray[Any], bits: int) -> None:
        """Look at nothing yet; a value takes so many bits."""
        super().__init__(column)
        self._bits = bits
        self._flat: dict[int, _Flat | None] = {}

    def of(self, row: int, length: int) -> tuple[memoryview, int] | None:
        """A part's values as they lie there, and where among them the row's begin.

        None where it has not as many, or where some values of the part are missing.
        """
        part, row = self.find(row)
        if part not in self._flat:
            self._flat[part] = _flat(self.parts[part], self._bits)
        if (flat := self._flat[part]) is None:
            return None
        first, stop = flat.bounds.item(row), flat.bounds.item(row + 1)
        if first < 0 or stop - first != length or stop > flat.count:
            return None
        return flat.values, flat.before + first


@dataclass(frozen=True)
class _Flat:
    """The lists of a part: bounds of each, the bytes of all their values, values of others before
    them, and how many there are."""

    bounds: npt.NDArray[np.int32]
    values: memoryview
    before: int
    count: int


def _flat(part: Any, bits: int) -> _Flat | None:
    values = part.values
    if values.null_count:
        return None
    held = memoryview(values.buffers()[1] or b"").cast("B")
    count = min(len(values), 8 * len(held) // bits - values.offset)
    return _Flat(part.offsets.to_numpy(), held, values.offset, count)
