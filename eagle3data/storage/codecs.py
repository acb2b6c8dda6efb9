"""Codec profiles: how one chunk becomes bytes that any Zarr v3 reader decodes.

Every chunk ends in its CRC32C (four bytes, little-endian), the `crc32c` codec of Zarr v3.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import Blosc
from pcodec import ChunkConfig, DeltaSpec, ModeSpec, standalone

from eagle3data.schema.digest import crc32c
from eagle3data.schema.manifest import Codec

CHECKSUM_BYTES = 4
PCODEC_LEVEL = 8
_BLOCK_BYTES = 1 << 20
"""A copy of so much is still in a core's caches when it is checksummed; after each, Python's lock
changes hands, which smaller ones would do too often."""


class ChunkError(Exception):
    """A chunk whose bytes are wrong; whoever knows where it lies says so.

    Attributes:
        at: which of several chunks that were read together.
    """

    def __init__(self, message: str, at: int = 0) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk as it is stored: its payload, then the CRC32C of it."""

    payload: bytes | memoryview
    crc32c: int

    @property
    def nbytes(self) -> int:
        return len(self.payload) + CHECKSUM_BYTES

    @property
    def parts(self) -> tuple[bytes | memoryview, bytes]:
        """What is written, in order."""
        return self.payload, self.crc32c.to_bytes(CHECKSUM_BYTES, "little")


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

    @cached_property
    def raw_bytes(self) -> int:
        """Bytes of a chunk before compression."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def _blosc(self) -> Blosc:
        return Blosc(cname="lz4", clevel=5, shuffle=Blosc.BITSHUFFLE, typesize=self.dtype.itemsize)

    @cached_property
    def _pcodec_config(self) -> ChunkConfig:
        # A bfloat16 value cast to float16 has three dead mantissa bits. Saying so, and that
        # neighbours do not predict each other, saves the search; the decoder is the same.
        mode = ModeSpec.try_float_quant(3) if self.dtype.kind == "f" else ModeSpec.auto()
        delta = DeltaSpec.try_consecutive(0)
        return ChunkConfig(compression_level=PCODEC_LEVEL, mode_spec=mode, delta_spec=delta)

    def encode(self, chunk: npt.NDArray[Any]) -> EncodedChunk:
        """Payload and checksum of a chunk (contiguous, of this shape and dtype)."""
        payload: bytes | memoryview
        if self.profile is Codec.NONE:
            payload = chunk.data.cast("B")
        elif self.profile is Codec.LZ4:
            payload = bytes(self._blosc.encode(chunk))
        else:
            payload = standalone.simple_compress(chunk.reshape(-1), self._pcodec_config)
        return EncodedChunk(payload, crc32c(payload))

    def verify(self, stored: npt.NDArray[np.uint8]) -> int:
        """Compare a stored chunk with the CRC32C behind it; nothing is decoded.

        Returns:
            The stored CRC32C.

        Raises:
            ChunkError: they differ.
        """
        expected = int.from_bytes(stored[-CHECKSUM_BYTES:].tobytes(), "little")
        _compare(crc32c(stored[:-CHECKSUM_BYTES]), expected)
        return expected

    def decode(
        self, stored: npt.NDArray[np.uint8], out: npt.NDArray[Any], *, verify: bool = True
    ) -> int:
        """Decode a stored chunk into `out`: its first `len(out)` rows.

        Args:
            stored: payload and checksum, `[bytes]` uint8; may lie in a mapped file.
            out: contiguous, `[rows, ...]` with rows at most the chunk's.
            verify: compare the checksum (a decoder may still notice damage without it).

        Returns:
            The stored CRC32C.

        Raises:
            ChunkError: a wrong checksum or size, or a payload that doesn't decode. What `out`
                holds then means nothing.
        """
        payload = stored[:-CHECKSUM_BYTES]
        expected = int.from_bytes(stored[-CHECKSUM_BYTES:].tobytes(), "little")
        if self.profile is Codec.NONE:
            self._require_size(len(payload))
            self._copy(payload, out.reshape(-1).view(np.uint8), expected, verify=verify)
            return expected
        if verify:
            _compare(crc32c(payload), expected)
        whole = out.nbytes == self.raw_bytes
        target = out.reshape(-1) if whole else np.empty(self.raw_bytes, np.uint8).view(self.dtype)
        try:
            size = self._decompress(payload, target)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ChunkError(f"it does not decode ({error})") from None
        self._require_size(size)
        if not whole:
            out.reshape(-1)[:] = target[: out.size]
        return expected

    def copy(
        self, stored: npt.NDArray[np.uint8], out: npt.NDArray[Any], *, verify: bool = True
    ) -> list[int]:
        """As `decode`, of chunks of profile `none` that lie side by side, in few calls.

        Args:
            stored: `[chunks, bytes]` uint8, each one's payload and checksum.
            out: contiguous `[rows, ...]`, which ends in the last of the chunks.
            verify: compare each chunk's checksum.

        Returns:
            The stored CRC32C of each.

        Raises:
            ChunkError: a wrong checksum. What `out` holds then means nothing.
        """
        size = self.raw_bytes
        payloads, flat = stored[:, :size], out.reshape(-1).view(np.uint8)
        expected: list[int] = stored[:, size:].copy().view("<u4")[:, 0].tolist()
        step = _BLOCK_BYTES // size
        whole = flat.nbytes // size if step else 0
        for first in range(0, whole, step or 1):
            blocks = flat[first * size : min(first + step, whole) * size].reshape(-1, size)
            np.copyto(blocks, payloads[first : first + len(blocks)])
            if verify:
                for at, block in enumerate(blocks, first):
                    _compare(crc32c(block), expected[at], at)
        for at in range(whole, len(stored)):
            part = flat[at * size : (at + 1) * size]
            self._copy(payloads[at], part, expected[at], at, verify=verify)
        return expected

    def _copy(
        self,
        payload: npt.NDArray[np.uint8],
        flat: npt.NDArray[np.uint8],
        expected: int,
        at: int = 0,
        *,
        verify: bool,
    ) -> None:
        """Copy a block, checksum the copy while it is in the core's own caches, go on."""
        size = flat.nbytes
        if not verify:
            np.copyto(flat, payload[:size])
            return
        found = 0
        for start in range(0, size, _BLOCK_BYTES):
            block = flat[start : start + _BLOCK_BYTES]
            np.copyto(block, payload[start : start + len(block)])
            found = crc32c(block, found)
        if size < len(payload):
            found = crc32c(payload[size:], found)
        _compare(found, expected, at)

    def _decompress(self, payload: npt.NDArray[np.uint8], target: npt.NDArray[Any]) -> int:
        """Decode a whole chunk into `target` (flat); the bytes that the payload says it holds."""
        if self.profile is Codec.LZ4:
            # Bytes 4 to 8 of a Blosc 1 header: the uncompressed size.
            size = int.from_bytes(payload[4:8].tobytes(), "little")
            self._require_size(size)
            self._blosc.decode(payload, out=target)
            return size
        progress = standalone.simple_decompress_into(payload.tobytes(), target)
        if not progress.finished:
            raise ChunkError(f"it holds more than {self.raw_bytes} bytes")
        return int(progress.n_processed) * self.dtype.itemsize

    def _require_size(self, size: int) -> None:
        if size != self.raw_bytes:
            raise ChunkError(f"it holds {size} bytes, expected {self.raw_bytes}")


def _compare(found: int, expected: int, at: int = 0) -> None:
    if found != expected:
        raise ChunkError(f"its CRC32C is {found:08x}, stored was {expected:08x}", at)


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
