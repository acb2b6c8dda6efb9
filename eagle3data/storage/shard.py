"""One Zarr v3 `sharding_indexed` object: encoding from chunks, reading rows back, checked.

Layout (Zarr v3 sharding codec, index at the end): the encoded chunks back to back in chunk
order, then an index of (offset, nbytes) as little-endian uint64 a chunk, then the index's
CRC32C. A chunk that is not stored has 2**64-1 in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.schema.digest import crc32c
from eagle3data.schema.errors import CorruptionError
from eagle3data.storage.codecs import CHECKSUM_BYTES, ChunkCodec, ChunkError
from eagle3data.storage.root import Buffer, Root

NOT_STORED = 2**64 - 1
_ENTRY_BYTES = 16


def index_bytes(chunks: int) -> int:
    """Bytes of a shard's index, checksum included."""
    return chunks * _ENTRY_BYTES + CHECKSUM_BYTES


@dataclass(frozen=True, kw_only=True)
class EncodedShard:
    """A shard as it is written.

    Attributes:
        parts: buffers to be written one after the other.
        chunks_crc32c: see `chunks_crc32c`.
    """

    parts: list[Buffer]
    chunks_crc32c: int

    @property
    def nbytes(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def object_crc32c(self) -> int:
        """CRC32C of the whole object, as an object store computes it."""
        checksum = 0
        for part in self.parts:
            checksum = crc32c(part, checksum)
        return checksum


def chunks_crc32c(checksums: Iterable[int]) -> int:
    """CRC32C over the CRC32C of each stored chunk, in chunk order.

    The object's own CRC32C can't tell one attempt at a shard from another: data followed by
    its CRC32C leaves a checksum that depends on the length alone. This one does.
    """
    return crc32c(np.fromiter(checksums, dtype="<u4").tobytes())


def encode_shard(codec: ChunkCodec, chunks: Sequence[npt.NDArray[Any] | None]) -> EncodedShard:
    """Encode a shard; None is a chunk that is not stored."""
    parts: list[Buffer] = []
    checksums: list[int] = []
    index = np.full((len(chunks), 2), NOT_STORED, dtype="<u8")
    position = 0
    for number, chunk in enumerate(chunks):
        if chunk is None:
            continue
        encoded = codec.encode(chunk)
        size = sum(len(part) for part in encoded)
        index[number] = (position, size)
        parts += encoded
        checksums.append(int.from_bytes(encoded[-1], "little"))
        position += size
    encoded_index = index.tobytes()
    parts += [encoded_index, crc32c(encoded_index).to_bytes(CHECKSUM_BYTES, "little")]
    return EncodedShard(parts=parts, chunks_crc32c=chunks_crc32c(checksums))


class ShardReader:
    """Rows of one shard of one array.

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
        self._root = root
        self._array = array
        self._shard = shard
        self._name = name
        self._codec = codec
        size = root.size(name)
        if size is None:
            raise self._corrupt("object_missing", f"{name} is not there")
        tail = index_bytes(chunks)
        data = self._bytes(size - tail, size) if size >= tail else b""
        if len(data) != tail:
            raise self._corrupt(
                "object_truncated", f"{name} has {size} bytes, its index alone takes {tail}"
            )
        stored = int.from_bytes(data[-CHECKSUM_BYTES:], "little")
        if crc32c(memoryview(data)[:-CHECKSUM_BYTES]) != stored:
            raise self._corrupt(
                "chunk_corrupt", f"the index at the end of {name} does not match its checksum"
            )
        self.index = np.frombuffer(data, "<u8", count=chunks * 2).reshape(chunks, 2)
        self.checksums: dict[int, int] = {}
        self._end = size - tail

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
            CorruptionError: a chunk is missing, lies outside the object or is damaged.
        """
        entries = self.index[chunks.start : chunks.stop]
        for number, (offset, size) in zip(chunks, entries, strict=True):
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
        start = int(entries[:, 0].min())
        stop = int(entries.sum(axis=1).max())
        data = memoryview(self._bytes(start, stop))
        if len(data) != stop - start:
            raise self._corrupt("object_truncated", "the object ended while it was read")
        rows = self._codec.shape[0]
        for position, (number, (offset, size)) in enumerate(zip(chunks, entries, strict=True)):
            piece = data[int(offset) - start : int(offset) - start + int(size)]
            self.checksums[number] = int.from_bytes(piece[-CHECKSUM_BYTES:], "little")
            try:
                self._codec.decode(
                    piece, out[position * rows : (position + 1) * rows], verify=verify
                )
            except ChunkError as error:
                raise self._corrupt("chunk_corrupt", str(error), number, sample_id) from None

    def _bytes(self, start: int, stop: int) -> bytes:
        try:
            return self._root.read_range(self._name, start, stop)
        except OSError as error:
            raise self._corrupt("object_unreadable", f"{self._name}: {error}") from None

    def _corrupt(
        self, kind: str, message: str, chunk: int | None = None, sample_id: str | None = None
    ) -> CorruptionError:
        return CorruptionError(
            kind,
            message,
            url=self._root.url,
            array=self._array,
            shard=self._shard,
            chunk=chunk,
            sample_id=sample_id,
        )
