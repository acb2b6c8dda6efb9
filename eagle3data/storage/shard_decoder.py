"""One Zarr v3 `sharding_indexed` object, read: the rows of some chunks into a given buffer.

See `shard_encoder` for the layout; chunks may lie in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.schema.digest import crc32c
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import Codec
from eagle3data.storage.codecs import CHECKSUM_BYTES, ChunkCodec, ChunkError
from eagle3data.storage.root import Root
from eagle3data.storage.shard_encoder import NOT_STORED, index_bytes


@dataclass(frozen=True)
class _Run:
    """Chunks that lie one after the other in the object, and where: byte bounds, one more."""

    chunks: range
    bounds: list[int]


class ShardDecoder:
    """Rows of one shard of one array; safe to use from several threads.

    Attributes:
        index: `[chunks, 2]` uint64, offset and bytes of each chunk in the object.
        checksums: stored CRC32C of every chunk read so far, by chunk number.
    """

    def __init__(
        self, root: Root, codec: ChunkCodec, *, array: str, shard: int, name: str, chunks: int
    ) -> None:
        """Read and check the shard's index.

        Raises:
            CorruptionError: the object is missing, too short, or its index's checksum is wrong.
        """
        self._url = root.url
        self._array = array
        self._shard = shard
        self._name = name
        self._codec = codec
        try:
            self._object = root.open(name)
        except FileNotFoundError:
            raise self._corrupt("object_missing", f"{name} is not there") from None
        except OSError as error:
            raise self._corrupt("object_unreadable", f"{name}: {error}") from None
        size, tail = self._object.size, index_bytes(chunks)
        if size < tail:
            raise self._corrupt(
                "object_truncated", f"{name} has {size} bytes, its index alone takes {tail}"
            )
        data = self._bytes(size - tail, size).tobytes()
        stored = int.from_bytes(data[-CHECKSUM_BYTES:], "little")
        if crc32c(data[:-CHECKSUM_BYTES]) != stored:
            raise self._corrupt(
                "chunk_corrupt", f"the index at the end of {name} does not match its checksum"
            )
        self.index = np.frombuffer(data, "<u8", count=chunks * 2).reshape(chunks, 2)
        self.checksums: dict[int, int] = {}
        self._end = size - tail
        self._adjoins = self._plain_after_plain()

    def will_read(self, chunks: range) -> None:
        """Have the disk begin with some chunks; whatever is wrong with them shows in `read`."""
        entries = self.index[chunks.start : chunks.stop].tolist()
        stored = [(offset, offset + size) for offset, size in entries if offset != NOT_STORED]
        if stored:
            start, stop = min(stored)[0], max(last for _, last in stored)
            self._object.will_read(min(start, self._end), min(stop, self._end))

    def read(
        self, chunks: range, out: npt.NDArray[Any], sample_id: str, *, verify: bool = True
    ) -> None:
        """Fill `out` with the first `len(out)` rows of consecutive chunks.

        Args:
            chunks: chunk numbers within the shard.
            out: contiguous `[rows, ...]` of the array's dtype.
            sample_id: named in errors.
            verify: compare each chunk's checksum.

        Raises:
            CorruptionError: a chunk is missing, lies outside the object or is damaged. What `out`
                holds then means nothing.
        """
        plain = self.side_by_side(chunks, len(out), sample_id)
        if plain is None:
            self.decode(self.stored(chunks, sample_id), chunks.start, out, sample_id, verify=verify)
            return
        try:
            stored = self._codec.copy(plain, out, verify=verify)
        except ChunkError as error:
            number = chunks[error.at]
            raise self._corrupt("chunk_corrupt", str(error), number, sample_id) from None
        self.checksums.update(zip(chunks, stored, strict=True))

    def side_by_side(
        self, chunks: range, rows: int, sample_id: str | None = None
    ) -> npt.NDArray[np.uint8] | None:
        """`[chunks, bytes]` of uncompressed chunks that adjoin in order; None of others.

        Of chunks that are missing or lie outside too: whoever reads them one by one says which.
        The last of the rows must be in the last chunk.

        Raises:
            CorruptionError: the object can't be read there.
        """
        found = self.all_side_by_side([(chunks, rows)], sample_id)
        return None if found is None else found[0]

    def all_side_by_side(
        self, wanted: Sequence[tuple[range, int]], sample_id: str | None = None
    ) -> list[npt.NDArray[np.uint8]] | None:
        """As `side_by_side` of chunks and rows each; None where it is of one of them.

        Raises:
            CorruptionError: the object can't be read there.
        """
        codec = self._codec
        if codec.profile is not Codec.NONE:
            return None
        size, chunk_rows = codec.raw_bytes + CHECKSUM_BYTES, codec.shape[0]
        bounds = []
        for chunks, rows in wanted:
            count, first = len(chunks), chunks.start
            if -(-rows // chunk_rows) != count or not count:
                return None
            start, stored = self.index.item(first, 0), self.index.item(first, 1)
            stop = start + count * size
            if stored != size or stop > self._end:
                return None
            if self._adjoins.find(0, first + 1, chunks.stop) >= 0:
                return None
            bounds.append((start, stop))
        return [data.reshape(-1, size) for data in self._all_bytes(bounds, sample_id)]

    def _plain_after_plain(self) -> bytes:
        """Of each chunk whether it lies behind the one before it, both of them uncompressed."""
        size = self._codec.raw_bytes + CHECKSUM_BYTES
        offsets, sizes = self.index[:, 0], self.index[:, 1]
        adjoins = np.zeros(len(self.index), np.uint8)
        plain = sizes == size
        adjoins[1:] = plain[1:] & plain[:-1] & (offsets[1:] == offsets[:-1] + np.uint64(size))
        return adjoins.tobytes()

    def decode(
        self,
        stored: Iterable[tuple[int, npt.NDArray[np.uint8]]],
        first: int,
        out: npt.NDArray[Any],
        sample_id: str,
        *,
        verify: bool = True,
    ) -> None:
        """As `read`, of chunks that are at hand.

        Args:
            stored: each chunk's number and its bytes as they are stored.
            first: the number of the chunk that `out` begins with.
            out: as in `read`.
            sample_id: named in errors.
            verify: compare each chunk's checksum.

        Raises:
            CorruptionError: a chunk is damaged. What `out` holds then means nothing.
        """
        rows, decode = self._codec.shape[0], self._codec.decode
        for number, data in stored:
            row = (number - first) * rows
            try:
                self.checksums[number] = decode(data, out[row : row + rows], verify=verify)
            except ChunkError as error:
                raise self._corrupt("chunk_corrupt", str(error), number, sample_id) from None

    def verify(self, chunks: range, sample_id: str) -> None:
        """Compare the checksums of consecutive chunks; nothing is decoded, or copied.

        Raises:
            CorruptionError: a chunk is missing, lies outside the object or is damaged.
        """
        for number, stored in self.stored(chunks, sample_id):
            try:
                self.checksums[number] = self._codec.verify(stored)
            except ChunkError as error:
                raise self._corrupt("chunk_corrupt", str(error), number, sample_id) from None

    def stored(self, chunks: range, sample_id: str) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Each chunk's number and its bytes as they lie in the object, unchecked.

        Those that adjoin are read in one go.

        Raises:
            CorruptionError: a chunk is missing or lies outside the object.
        """
        for run in self._runs(chunks, sample_id):
            start = run.bounds[0]
            data = self._bytes(start, run.bounds[-1], sample_id)
            for number, (first, stop) in zip(run.chunks, pairwise(run.bounds), strict=True):
                yield number, data[first - start : stop - start]

    def stored_checksum(self, number: int) -> int:
        """The CRC32C that lies behind a chunk; the chunk itself is not read.

        Raises:
            CorruptionError: there is no such chunk in the object.
        """
        offset, size = self.index[number].tolist()
        self._require_inside(number, offset, size, None)
        stored = self._bytes(offset + size - CHECKSUM_BYTES, offset + size)
        return int.from_bytes(stored.tobytes(), "little")

    def _runs(self, chunks: range, sample_id: str) -> Iterator[_Run]:
        entries = self.index[chunks.start : chunks.stop].tolist()
        for number, (offset, size) in zip(chunks, entries, strict=True):
            self._require_inside(number, offset, size, sample_id)
        begin = 0
        for at, (offset, size) in enumerate(entries):
            if at + 1 < len(entries) and entries[at + 1][0] == offset + size:
                continue
            bounds = [start for start, _ in entries[begin : at + 1]]
            yield _Run(chunks[begin : at + 1], [*bounds, offset + size])
            begin = at + 1

    def _require_inside(self, number: int, offset: int, size: int, sample_id: str | None) -> None:
        if offset == NOT_STORED:
            raise self._corrupt(
                "chunk_missing", "a chunk inside a sample is not stored", number, sample_id
            )
        if size < CHECKSUM_BYTES or offset + size > self._end:
            raise self._corrupt(
                "object_truncated",
                f"the chunk's {size} bytes at {offset} pass the index at {self._end}",
                number,
                sample_id,
            )

    def _bytes(self, start: int, stop: int, sample_id: str | None = None) -> npt.NDArray[np.uint8]:
        return self._all_bytes([(start, stop)], sample_id)[0]

    def _all_bytes(
        self, bounds: Sequence[tuple[int, int]], sample_id: str | None
    ) -> list[npt.NDArray[np.uint8]]:
        try:
            found = self._object.read_all(bounds)
        except OSError as error:
            raise self._corrupt(
                "object_unreadable", f"{self._name}: {error}", sample_id=sample_id
            ) from None
        for data, (start, stop) in zip(found, bounds, strict=True):
            if len(data) != stop - start:
                raise self._corrupt(
                    "object_truncated",
                    f"{self._name} has become shorter: it ends before byte {stop}",
                    sample_id=sample_id,
                )
        return found

    def _corrupt(
        self, kind: str, message: str, chunk: int | None = None, sample_id: str | None = None
    ) -> CorruptionError:
        return CorruptionError(
            kind,
            message,
            url=self._url,
            array=self._array,
            shard=self._shard,
            chunk=chunk,
            sample_id=sample_id,
        )
