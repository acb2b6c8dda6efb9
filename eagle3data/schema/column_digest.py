"""Digests of Arrow columns by their values, however they are chunked, sliced or padded.

A column is taken apart into streams: the values (of a list: its lengths, then the items as a
column of their own; of a string: its lengths, then its bytes) and the positions of nulls. Each
stream is hashed as the little-endian bytes that Arrow keeps; the digest is over their hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.schema.digest import crc32c


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32c:
    """CRC32C with the methods of a hashlib hash: against accidents, at memory speed."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any, /) -> None:
        if len(data):
            self._value = crc32c(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "little")


class _Streams:
    """The streams of some columns, fed chunk after chunk."""

    def __init__(self, hasher: Callable[[], _Hash]) -> None:
        self._hasher = hasher
        self._hashes: dict[str, _Hash] = {}
        self._fed: dict[str, int] = {}

    def add(self, path: str, array: Any, *, items: bool = True) -> None:
        """Feed an array; of a list without `items` the lengths only."""
        if not len(array):
            return
        fed = self._fed.get(path, 0)
        self._fed[path] = fed + len(array)
        if array.null_count:
            nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) + fed
            self._update(f"{path} nulls", nulls)
            array = array.drop_null()
        if pa.types.is_list(array.type) or pa.types.is_map(array.type):
            self._add_list(path, array, items=items)
        elif pa.types.is_string(array.type):
            self._add_string(path, array)
        elif pa.types.is_boolean(array.type):
            self._update(path, array.cast(pa.uint8()).to_numpy())
        else:
            self._update(path, array.to_numpy())

    def digest(self) -> bytes:
        """Hash over each stream's name, length and hash."""
        whole = self._hasher()
        for path, count in sorted(self._fed.items()):
            whole.update(f"{path} {count}\n".encode())
        for path, hashed in sorted(self._hashes.items()):
            whole.update(path.encode() + b"\n" + hashed.digest())
        return whole.digest()

    def _add_list(self, path: str, array: Any, *, items: bool) -> None:
        offsets = array.offsets.to_numpy()
        self._update(path, offsets[1:] - offsets[:-1])
        if not items:
            return
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        if pa.types.is_map(array.type):
            self.add(f"{path} keys", array.keys.slice(first, count))
            self.add(f"{path} values", array.items.slice(first, count))
        else:
            self.add(f"{path} items", array.values.slice(first, count))

    def _add_string(self, path: str, array: Any) -> None:
        _, offsets_buffer, data = array.buffers()
        offsets: npt.NDArray[np.int32] = np.frombuffer(
            offsets_buffer, "<i4", len(array) + 1, 4 * array.offset
        )
        self._update(path, offsets[1:] - offsets[:-1])
        if data is not None:
            self._update(f"{path} bytes", memoryview(data)[offsets[0] : offsets[-1]])

    def _update(self, path: str, data: Any) -> None:
        if path not in self._hashes:
            self._hashes[path] = self._hasher()
        if len(data):
            self._hashes[path].update(data)


def columns_digest(table: pa.Table) -> str:
    """`sha256:...` over all columns: names, values, nulls and the rows' order."""
    streams = _Streams(hashlib.sha256)
    for name in table.column_names:
        for chunk in table[name].chunks:
            streams.add(name, chunk)
    return "sha256:" + streams.digest().hex()


def columns_crc32c(batch: pa.RecordBatch, without_items: Collection[str]) -> int:
    """CRC32C over a batch's columns; of the lists `without_items`, over their lengths only."""
    streams = _Streams(_Crc32c)
    for name in batch.schema.names:
        streams.add(name, batch.column(name), items=name not in without_items)
    return int.from_bytes(streams.digest(), "little")
