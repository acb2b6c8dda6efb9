"""Our shards against zarr-python, both ways, in every profile; damage is named."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import Codec
from eagle3data.storage.codecs import ChunkCodec, zarr_codecs
from eagle3data.storage.root import Root
from eagle3data.storage.shard import ShardReader, encode_shard, index_bytes

DTYPES: list[np.dtype[Any]] = [np.dtype("<f2"), np.dtype("<u2"), np.dtype("<i4"), np.dtype("u1")]
CASES = [
    (codec, dtype)
    for codec, dtype in itertools.product(Codec, DTYPES)
    if not (codec is Codec.PCODEC and dtype.itemsize == 1)
]
FILL = {"f": float("nan"), "u": 0, "i": -1}


def _zarr_array(folder: Path, codec: ChunkCodec, chunks: int, shards: int = 1) -> Any:
    rows, *width = codec.shape
    return zarr.create_array(
        store=str(folder),
        shape=(rows * chunks * shards, *width),
        shards=(rows * chunks, *width),
        chunks=codec.shape,
        dtype=codec.dtype,
        fill_value=FILL[codec.dtype.kind],
        overwrite=True,
        **zarr_codecs(codec.profile, codec.dtype),
    )


def _values(codec: ChunkCodec, rows: int, seed: int) -> npt.NDArray[Any]:
    rng = np.random.default_rng(seed)
    shape = (rows, *codec.shape[1:])
    if codec.dtype.kind == "f":
        return rng.standard_normal(shape).astype(codec.dtype)
    return rng.integers(0, 200, shape).astype(codec.dtype)


def _reader(folder: Path, name: str, codec: ChunkCodec, chunks: int) -> ShardReader:
    root = Root(str(folder))
    return ShardReader(root, codec, array="a", shard=0, name=name, chunks=chunks)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@settings(deadline=None, max_examples=25)
@given(
    case=st.sampled_from(CASES),
    present=st.lists(st.booleans(), min_size=1, max_size=9),
    rows=st.sampled_from([1, 3, 16]),
    width=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
def test_both_ways_with_zarr_python(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[Codec, np.dtype[Any]],
    present: list[bool],
    rows: int,
    width: int,
    seed: int,
) -> None:
    codec = ChunkCodec(profile=case[0], dtype=case[1], shape=(rows, width))
    folder = tmp_path_factory.mktemp("shard")
    values = _values(codec, rows * len(present), seed)
    pieces = [
        values[number * rows : (number + 1) * rows] if there else None
        for number, there in enumerate(present)
    ]
    array = _zarr_array(folder, codec, len(present))

    Root(str(folder)).create("c/0/0", encode_shard(codec, pieces).parts)
    for number, piece in enumerate(pieces):
        read = array[number * rows : (number + 1) * rows]
        expected = np.full_like(read, FILL[codec.dtype.kind]) if piece is None else piece
        np.testing.assert_array_equal(read, expected)

    if not any(present):
        return  # zarr-python stores no object for an empty shard
    other = _zarr_array(folder / "other", codec, len(present))
    for number, piece in enumerate(pieces):
        if piece is not None:
            other[number * rows : (number + 1) * rows] = piece
    reader = _reader(folder / "other", "c/0/0", codec, len(present))
    for number, piece in enumerate(pieces):
        if piece is not None and not _is_fill(piece):
            out = np.empty_like(piece)
            reader.read(range(number, number + 1), out, "s")
            np.testing.assert_array_equal(out, piece)


def _is_fill(piece: npt.NDArray[Any]) -> bool:
    """Zarr-python leaves out a chunk that holds nothing but its fill value."""
    return piece.dtype.kind == "u" and not piece.any()


@pytest.fixture(params=list(Codec))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, ChunkCodec]:
    codec = ChunkCodec(profile=request.param, dtype=np.dtype("<f2"), shape=(16, 8))
    pieces = [_values(codec, 16, seed) for seed in range(3)]
    Root(str(tmp_path)).create("shard", encode_shard(codec, [*pieces, None]).parts)
    return tmp_path, codec


def _read_all(folder: Path, codec: ChunkCodec) -> None:
    reader = _reader(folder, "shard", codec, 4)
    reader.read(range(3), np.empty((48, 8), dtype=np.float16), "the-sample")


def test_every_flipped_bit_is_found(stored: tuple[Path, ChunkCodec]) -> None:
    folder, codec = stored
    whole = (folder / "shard").read_bytes()
    _read_all(folder, codec)
    rng = np.random.default_rng(0)
    for position in rng.choice(len(whole), 60, replace=False):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(8))
        (folder / "shard").write_bytes(damaged)
        with pytest.raises(CorruptionError, match="chunk_corrupt|object_truncated|chunk_missing"):
            _read_all(folder, codec)


def test_damage_names_the_place(stored: tuple[Path, ChunkCodec]) -> None:
    folder, codec = stored
    damaged = bytearray((folder / "shard").read_bytes())
    damaged[5] ^= 1
    (folder / "shard").write_bytes(damaged)
    with pytest.raises(CorruptionError) as caught:
        _read_all(folder, codec)
    assert (caught.value.array, caught.value.shard, caught.value.chunk) == ("a", 0, 0)
    assert caught.value.sample_id == "the-sample"
    assert str(folder) in str(caught.value)


def test_every_truncation_is_found(stored: tuple[Path, ChunkCodec]) -> None:
    folder, codec = stored
    whole = (folder / "shard").read_bytes()
    for size in [0, 1, index_bytes(4) - 1, index_bytes(4), len(whole) // 2, len(whole) - 1]:
        (folder / "shard").write_bytes(whole[:size])
        with pytest.raises(CorruptionError):
            _read_all(folder, codec)


def test_missing_object_and_missing_chunk(stored: tuple[Path, ChunkCodec]) -> None:
    folder, codec = stored
    reader = _reader(folder, "shard", codec, 4)
    with pytest.raises(CorruptionError, match="chunk_missing"):
        reader.read(range(2, 4), np.empty((32, 8), dtype=np.float16), "s")
    (folder / "shard").unlink()
    with pytest.raises(CorruptionError, match="object_missing"):
        _read_all(folder, codec)


def test_wrong_checksum_may_be_accepted_when_asked(tmp_path: Path) -> None:
    codec = ChunkCodec(profile=Codec.NONE, dtype=np.dtype("<f2"), shape=(16, 8))
    Root(str(tmp_path)).create("shard", encode_shard(codec, [_values(codec, 16, 0)]).parts)
    damaged = bytearray((tmp_path / "shard").read_bytes())
    damaged[5] ^= 1
    (tmp_path / "shard").write_bytes(damaged)
    out = np.empty((16, 8), dtype=np.float16)
    _reader(tmp_path, "shard", codec, 1).read(range(1), out, "s", verify=False)


def test_the_objects_own_crc_is_blind_where_the_chunks_one_sees() -> None:
    codec = ChunkCodec(profile=Codec.NONE, dtype=np.dtype("<f2"), shape=(16, 8))
    one, other = (encode_shard(codec, [_values(codec, 16, seed)]) for seed in (0, 1))
    assert one.object_crc32c == other.object_crc32c
    assert one.chunks_crc32c != other.chunks_crc32c


def test_profile_warning_is_not_shown() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zarr_codecs(Codec.PCODEC, np.dtype("<f2"))
