"""Chunks: every bit comes back; what is damaged or of another size is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3data.schema.digest import combine_crc32c, crc32c
from eagle3data.schema.manifest import Codec
from eagle3data.storage.codecs import ChunkCodec, ChunkError, EncodedChunk, zarr_codecs

FLOAT16 = np.dtype("<f2")


def codec_of(profile: Codec, rows: int = 16) -> ChunkCodec:
    return ChunkCodec(profile=profile, dtype=FLOAT16, shape=(rows, 8))


def stored_bytes(chunk: EncodedChunk) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(chunk.parts), np.uint8)


def states(rows: int = 16) -> npt.NDArray[Any]:
    return np.random.default_rng(rows).standard_normal((rows, 8)).astype(FLOAT16)


@pytest.mark.parametrize("profile", Codec)
def test_every_16_bit_pattern_comes_back(profile: Codec) -> None:
    """All of float16: both zeros, subnormals, infinities and each NaN."""
    codec = ChunkCodec(profile=profile, dtype=FLOAT16, shape=(256, 256))
    every = np.arange(2**16, dtype="<u2").view(FLOAT16).reshape(256, 256)
    chunk = codec.encode(every)
    out = np.empty_like(every)
    assert codec.decode(stored_bytes(chunk), out) == chunk.crc32c == crc32c(chunk.payload)
    assert out.tobytes() == every.tobytes()


@pytest.mark.parametrize("profile", Codec)
@pytest.mark.parametrize("rows", range(1, 17))
def test_the_first_rows_of_a_chunk(profile: Codec, rows: int) -> None:
    codec, values = codec_of(profile), states()
    around = np.full((rows + 2, 8), 7, FLOAT16)
    codec.decode(stored_bytes(codec.encode(values)), around[1:-1])
    assert around[1:-1].tobytes() == values[:rows].tobytes()
    assert (around[[0, -1]] == 7).all()


@pytest.mark.parametrize(("width", "chunks"), [(8, 5), (12_288, 5), (49_152, 2)])
@pytest.mark.parametrize("last", [1, 15, 16])
def test_chunks_side_by_side(width: int, chunks: int, last: int) -> None:
    """Several a block of the copy, two and a rest, and a chunk that is larger than a block."""
    codec = ChunkCodec(profile=Codec.NONE, dtype=FLOAT16, shape=(16, width))
    bits = np.random.default_rng(width).integers(0, 1 << 16, (chunks * 16, width), np.uint16)
    encoded = [codec.encode(part) for part in np.split(bits.view(FLOAT16), chunks)]
    stored = np.stack([stored_bytes(chunk) for chunk in encoded])
    rows = (chunks - 1) * 16 + last
    around = np.full((rows + 2, width), 7, FLOAT16)
    assert codec.copy(stored, around[1:-1]) == [chunk.crc32c for chunk in encoded]
    assert around[1:-1].tobytes() == bits[:rows].tobytes()
    assert (around[[0, -1]] == 7).all()
    for at in range(chunks):
        for byte in (0, stored.shape[1] // 2, stored.shape[1] - 5, stored.shape[1] - 1):
            stored[at, byte] ^= 16
            with pytest.raises(ChunkError, match="CRC32C") as caught:
                codec.copy(stored, around[1:-1])
            assert caught.value.at == at
            codec.copy(stored, around[1:-1], verify=False)
            stored[at, byte] ^= 16


@pytest.mark.parametrize("profile", Codec)
def test_a_stored_chunk_may_lie_in_memory_that_is_only_to_be_read(profile: Codec) -> None:
    codec, values = codec_of(profile), states()
    stored = stored_bytes(codec.encode(values))
    stored.flags.writeable = False
    out = np.empty_like(values)
    codec.decode(stored, out)
    assert out.tobytes() == values.tobytes()


@pytest.mark.parametrize("profile", Codec)
@pytest.mark.parametrize("rows", [8, 32])
def test_a_chunk_of_another_size_is_refused(profile: Codec, rows: int) -> None:
    """Its checksum is right; only the size is not this array's."""
    stored = stored_bytes(codec_of(profile, rows).encode(states(rows)))
    for wanted in (16, 3):
        with pytest.raises(ChunkError, match="holds"):
            codec_of(profile).decode(stored, np.empty((wanted, 8), FLOAT16))


@pytest.mark.parametrize("profile", Codec)
def test_a_payload_that_is_no_chunk_is_refused(profile: Codec) -> None:
    """Its checksum is right; the rest is noise, or nothing."""
    codec, rng = codec_of(profile), np.random.default_rng(0)
    for size in [0, 1, 3, 7, 8, 15, 16, 40]:
        payload = rng.bytes(size)
        with pytest.raises(ChunkError):
            codec.decode(
                stored_bytes(EncodedChunk(payload, crc32c(payload))), np.empty((16, 8), FLOAT16)
            )


@pytest.mark.parametrize("profile", Codec)
def test_each_single_flipped_bit_is_found(profile: Codec) -> None:
    codec = codec_of(profile)
    whole = stored_bytes(codec.encode(states()))
    out = np.empty((16, 8), FLOAT16)
    for bit in range(len(whole) * 8):
        damaged = whole.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        for rows in (16, 1):
            with pytest.raises(ChunkError, match="CRC32C"):
                codec.decode(damaged, out[:rows])


@given(parts=st.lists(st.binary(max_size=40), max_size=8))
def test_combined_checksums_are_those_of_the_joined_bytes(parts: list[bytes]) -> None:
    value = 0
    for part in parts:
        value = combine_crc32c(value, crc32c(part), len(part))
    assert value == crc32c(b"".join(parts))


def test_the_checksum_is_castagnolis() -> None:
    """RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_profile_warning_is_not_shown() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zarr_codecs(Codec.PCODEC, FLOAT16)
