"""One Zarr v3 `sharding_indexed` object, written as its chunks come.

Layout (Zarr v3 sharding codec, index at the end): the encoded chunks back to back in the order
in which they came, then an index of (offset, nbytes) as little-endian uint64 a chunk, then the
index's CRC32C. A chunk that is not stored has 2**64-1 in both.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from eagle3data.schema.digest import combine_crc32c, crc32c
from eagle3data.storage.codecs import CHECKSUM_BYTES, EncodedChunk

NOT_STORED = 2**64 - 1
_ENTRY_BYTES = 16


def index_bytes(chunks: int) -> int:
    """Bytes of a shard's index, checksum included."""
    return chunks * _ENTRY_BYTES + CHECKSUM_BYTES


def chunks_crc32c(checksums: Iterable[int]) -> int:
    """CRC32C over the CRC32C of each stored chunk, in chunk order.

    The object's own CRC32C can't tell one attempt at a shard from another: data followed by
    its CRC32C leaves a checksum that depends on the length alone. This one does.
    """
    return crc32c(np.fromiter(checksums, dtype="<u4").tobytes())


class ShardEncoder:
    """Gives each encoded chunk its place, and makes the index.

    Attributes:
        nbytes: of the object so far.
        object_crc32c: CRC32C of the object so far, as an object store computes it.
    """

    def __init__(self, chunks: int) -> None:
        """Begin a shard of `chunks` chunks, none stored yet."""
        self._index = np.full((chunks, 2), NOT_STORED, dtype="<u8")
        self._checksums: dict[int, int] = {}
        self.nbytes = 0
        self.object_crc32c = 0

    @property
    def chunks_crc32c(self) -> int:
        """See `chunks_crc32c`."""
        return chunks_crc32c(self._checksums[number] for number in sorted(self._checksums))

    def add(self, number: int, chunk: EncodedChunk) -> list[bytes | memoryview]:
        """Put a chunk behind those before it; what to write there.

        Raises:
            ValueError: the chunk has its place already.
        """
        if number in self._checksums:
            raise ValueError(f"chunk {number} was added before")
        payload, checksum = chunk.parts
        self._index[number] = (self.nbytes, chunk.nbytes)
        self._checksums[number] = chunk.crc32c
        # The payload's checksum is known: combining costs nothing, another pass would.
        self._advance(len(payload), chunk.crc32c)
        self._advance(len(checksum), crc32c(checksum))
        return [payload, checksum]

    def finish(self) -> list[bytes | memoryview]:
        """The index and its checksum, which end the object."""
        index = self._index.tobytes()
        checksum = crc32c(index)
        tail = checksum.to_bytes(CHECKSUM_BYTES, "little")
        self._advance(len(index), checksum)
        self._advance(len(tail), crc32c(tail))
        return [index, tail]

    def _advance(self, nbytes: int, checksum: int) -> None:
        self.object_crc32c = combine_crc32c(self.object_crc32c, checksum, nbytes)
        self.nbytes += nbytes
