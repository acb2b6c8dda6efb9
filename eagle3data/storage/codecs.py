"""Codec profiles: how one chunk becomes bytes that any Zarr v3 reader decodes.

Every chunk ends in its CRC32C (four bytes, little-endian), the `crc32c` codec of Zarr v3.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, PCodec

from eagle3data.schema.digest import crc32c
from eagle3data.schema.manifest import Codec

CHECKSUM_BYTES = 4
PCODEC_LEVEL = 8


class ChunkError(Exception):
    """A chunk whose bytes are wrong; whoever knows where it lies says so."""


@dataclass(frozen=True, kw_only=True)
class ChunkCodec:
    """Encode and decode chunks of one array.

    Attributes:
        profile: the compression profile.
        dtype: little-endian dtype of the array.
        shape: of a whole chunk.
    """

    profile: Codec
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def raw_bytes(self) -> int:
        """Bytes of a chunk before compression."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @cached_property
    def _compressor(self) -> Blosc | PCodec | None:
        if self.profile is Codec.NONE:
            return None
        if self.profile is Codec.PCODEC:
            return PCodec(level=PCODEC_LEVEL)
        return Blosc(cname="lz4", clevel=5, shuffle=Blosc.BITSHUFFLE, typesize=self.dtype.itemsize)

    def encode(self, chunk: npt.NDArray[Any]) -> list[bytes | memoryview]:
        """Payload and checksum of a chunk (contiguous, of this shape and dtype)."""
        raw = chunk.data.cast("B")
        if self._compressor is None:
            payload: bytes | memoryview = raw
        else:
            payload = bytes(self._compressor.encode(chunk))
        return [payload, crc32c(payload).to_bytes(CHECKSUM_BYTES, "little")]

    def decode(self, stored: memoryview, out: npt.NDArray[Any], *, verify: bool = True) -> None:
        """Decode a stored chunk into `out`: its first `len(out)` rows.

        Args:
            stored: payload and checksum.
            out: contiguous, `[rows, ...]` with rows at most the chunk's.
            verify: compare the checksum (a decoder may still notice damage without it).

        Raises:
            ChunkError: a wrong checksum or size, or a payload that doesn't decode.
        """
        payload = stored[:-CHECKSUM_BYTES]
        if verify:
            expected = int.from_bytes(stored[-CHECKSUM_BYTES:], "little")
            found = crc32c(payload)
            if found != expected:
                raise ChunkError(f"its CRC32C is {found:08x}, stored was {expected:08x}")
        if self._compressor is not None:
            try:
                payload = memoryview(self._compressor.decode(payload)).cast("B")
            except (RuntimeError, ValueError) as error:
                raise ChunkError(f"it does not decode ({error})") from None
        if len(payload) != self.raw_bytes:
            raise ChunkError(f"it holds {len(payload)} bytes, expected {self.raw_bytes}")
        flat = out.reshape(-1).view(np.uint8)
        flat[:] = np.frombuffer(payload, np.uint8, count=flat.nbytes)


def zarr_codecs(profile: Codec, dtype: np.dtype[Any]) -> dict[str, Any]:
    """The same profile as zarr-python's `serializer` and `compressors` arguments."""
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
    from zarr.codecs.numcodecs import PCodec as ZarrPCodec

    if profile is Codec.PCODEC:
        with warnings.catch_warnings():
            # zarr-python warns that numcodecs' codecs are not in the core specification; the
            # format's documentation says so, and each set's metadata names the codec.
            warnings.simplefilter("ignore")
            return {"serializer": ZarrPCodec(level=PCODEC_LEVEL), "compressors": (Crc32cCodec(),)}
    compressors: tuple[Any, ...] = (Crc32cCodec(),)
    if profile is Codec.LZ4:
        blosc = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=dtype.itemsize)
        compressors = (blosc, Crc32cCodec())
    return {"serializer": BytesCodec(), "compressors": compressors}
