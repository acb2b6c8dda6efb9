"""Our shards and other Zarr v3 implementations read each other to the bit; damage is named."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3data.schema.digest import crc32c
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import Codec
from eagle3data.storage.codecs import ChunkCodec, zarr_codecs
from eagle3data.storage.root import Root
from eagle3data.storage.shard_decoder import ShardDecoder
from eagle3data.storage.shard_encoder import NOT_STORED, ShardEncoder, index_bytes

Array = npt.NDArray[Any]

DTYPES: list[np.dtype[Any]] = [np.dtype("<f2"), np.dtype("<u2"), np.dtype("<i4"), np.dtype("u1")]
FILL = {"<f2": float("nan"), "<u2": 0x7FC0, "<i4": -1, "|u1": 255}


@dataclass(frozen=True)
class Case:
    """One shard of an array of two, and what of it is stored.

    Attributes:
        chunks: of a shard.
        arrival: the stored chunks in the order in which they come.
        tail: rows that the array lacks at its end, fewer than a chunk.
    """

    codec: ChunkCodec
    chunks: int
    arrival: list[int]
    shard: int
    tail: int
    seed: int

    @property
    def rows(self) -> int:
        return self.codec.shape[0]

    @property
    def name(self) -> str:
        return f"c/{self.shard}" + "/0" * (len(self.codec.shape) - 1)

    @property
    def fill(self) -> Any:
        return FILL[self.codec.dtype.str]

    @property
    def values(self) -> dict[int, Array]:
        """The stored chunks: a few equal ones, normal states, and any bits at all (NaNs too)."""
        rng = np.random.default_rng(self.seed)
        found = {}
        for number in self.arrival:
            size = int(np.prod(self.codec.shape))
            anything = rng.integers(0, 256, size * self.codec.dtype.itemsize, dtype=np.uint8)
            states = rng.standard_normal(size) * 100
            found[number] = [
                anything.view(self.codec.dtype),
                np.abs(states).astype(self.codec.dtype),
                np.full(size, 7, self.codec.dtype),
            ][int(rng.integers(3))].reshape(self.codec.shape)
        return found

    @property
    def expected(self) -> Array:
        """The whole array as any reader should see it."""
        whole = np.full(
            (2 * self.chunks * self.rows, *self.codec.shape[1:]), self.fill, self.codec.dtype
        )
        for number, piece in self.values.items():
            first = (self.shard * self.chunks + number) * self.rows
            whole[first : first + self.rows] = piece
        return whole[: len(whole) - self.tail]

    def write(self, root: Root) -> None:
        """What `ShardEncoder` makes of it."""
        values, encoder = self.values, ShardEncoder(self.chunks)
        parts: list[Any] = []
        for number in self.arrival:
            parts += encoder.add(number, self.codec.encode(values[number]))
        parts += encoder.finish()
        whole = b"".join(parts)
        assert encoder.nbytes == len(whole)
        assert encoder.object_crc32c == crc32c(whole)
        root.create(self.name, parts)

    def zarr_array(self, folder: Path) -> Any:
        """An empty array of zarr-python with this package's codecs."""
        rows, *width = self.codec.shape
        return zarr.create_array(
            store=str(folder),
            shape=self.expected.shape,
            shards=(rows * self.chunks, *width),
            chunks=self.codec.shape,
            dtype=self.codec.dtype,
            fill_value=self.fill,
            config={"write_empty_chunks": True},
            **zarr_codecs(self.codec.profile, self.codec.dtype),
        )


@st.composite
def cases(draw: st.DrawFn, profile: Codec) -> Case:
    # pcodec takes no 8-bit numbers; the format stores none with it.
    dtypes = [dtype for dtype in DTYPES if profile is not Codec.PCODEC or dtype.itemsize > 1]
    rows, width = draw(st.sampled_from([1, 3, 16])), draw(st.integers(0, 20))
    chunks = draw(st.integers(1, 6))
    return Case(
        codec=ChunkCodec(
            profile=profile,
            dtype=draw(st.sampled_from(dtypes)),
            shape=(rows, width) if width else (rows,),
        ),
        chunks=chunks,
        arrival=draw(st.lists(st.integers(0, chunks - 1), min_size=1, unique=True)),
        shard=draw(st.integers(0, 1)),
        tail=draw(st.integers(0, rows - 1)),
        seed=draw(st.integers(0, 2**16)),
    )


def same_bits(one: Array, other: Array) -> bool:
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def read_with_zarr_python(folder: Path) -> Array:
    return np.asarray(zarr.open_array(folder, mode="r")[:])


def read_with_zarrs(folder: Path) -> Array:
    # `strict`: or zarr-python would take over what zarrs doesn't know.
    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
    with zarr.config.set(pipeline):
        return read_with_zarr_python(folder)


def read_with_tensorstore(folder: Path) -> Array:
    store = {"driver": "file", "path": str(folder)}
    found = tensorstore.open({"driver": "zarr3", "kvstore": store}, read=True).result()
    return np.asarray(found.read().result())


READERS: dict[str, tuple[Callable[[Path], Array], list[Codec]]] = {
    "zarr-python": (read_with_zarr_python, list(Codec)),
    "zarrs": (read_with_zarrs, list(Codec)),
    "tensorstore": (read_with_tensorstore, [Codec.NONE, Codec.LZ4]),
}


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.parametrize(
    ("reader", "profile"),
    [(reader, profile) for reader, (_, known) in READERS.items() for profile in known],
)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_others_read_what_we_write(reader: str, profile: Codec, data: st.DataObject) -> None:
    case = data.draw(cases(profile))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case.zarr_array(folder)
        case.write(Root(name))
        found = READERS[reader][0](folder)
    assert same_bits(found, case.expected)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.parametrize("profile", Codec)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_we_read_what_zarr_python_writes(profile: Codec, data: st.DataObject) -> None:
    case = data.draw(cases(profile))
    expected = case.expected
    with tempfile.TemporaryDirectory() as name:
        array = case.zarr_array(Path(name))
        for number in case.arrival:
            first = (case.shard * case.chunks + number) * case.rows
            array[first : first + case.rows] = expected[first : first + case.rows]
        decoder = open_decoder(Path(name), case.codec, case.chunks, case.name, case.shard)
        for number in range(case.chunks):
            first = (case.shard * case.chunks + number) * case.rows
            wanted = expected[first : first + case.rows]
            if decoder.index[number, 0] == NOT_STORED:
                assert number not in case.arrival
            else:
                out = np.empty_like(wanted)
                decoder.read(range(number, number + 1), out, "s")
                assert same_bits(out, wanted)


@pytest.mark.parametrize("profile", Codec)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_we_read_what_we_write(profile: Codec, data: st.DataObject) -> None:
    """Any rows of adjacent stored chunks, the last of them in part."""
    case = data.draw(cases(profile))
    values = case.values
    first = data.draw(st.sampled_from(sorted(values)))
    stop = next(number for number in itertools.count(first) if number not in values)
    wanted = np.concatenate([values[number] for number in range(first, stop)])
    wanted = wanted[: len(wanted) - data.draw(st.integers(0, case.rows - 1))]
    with tempfile.TemporaryDirectory() as name:
        case.write(Root(name))
        decoder = open_decoder(Path(name), case.codec, case.chunks, case.name, case.shard)
        out = np.empty_like(wanted)
        decoder.read(range(first, stop), out, "s")
        assert same_bits(out, wanted)
        if stop < case.chunks:
            more = np.empty((len(wanted) + case.rows, *wanted.shape[1:]), wanted.dtype)
            with pytest.raises(CorruptionError, match="chunk_missing"):
                decoder.read(range(first, stop + 1), more, "s")


def open_decoder(
    folder: Path, codec: ChunkCodec, chunks: int, name: str = "shard", shard: int = 0
) -> ShardDecoder:
    root = Root(str(folder))
    return ShardDecoder(root, codec, array="a", shard=shard, name=name, chunks=chunks)


def encoded(codec: ChunkCodec, seed: int, chunks: int = 4) -> tuple[ShardEncoder, bytes]:
    """A shard of standard normal numbers whose last chunk is not stored."""
    rng = np.random.default_rng(seed)
    encoder, parts = ShardEncoder(chunks), []
    for number in range(chunks - 1):
        piece = rng.standard_normal(codec.shape).astype(codec.dtype)
        parts += encoder.add(number, codec.encode(piece))
    return encoder, b"".join([*parts, *encoder.finish()])


@pytest.fixture(params=list(Codec))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, ChunkCodec]:
    codec = ChunkCodec(profile=request.param, dtype=np.dtype("<f2"), shape=(16, 8))
    (tmp_path / "shard").write_bytes(encoded(codec, 0)[1])
    return tmp_path, codec


def read_all(folder: Path, codec: ChunkCodec) -> None:
    open_decoder(folder, codec, 4).read(range(3), np.empty((48, 8), np.float16), "the-sample")


def test_every_flipped_bit_is_found(stored: tuple[Path, ChunkCodec]) -> None:
    folder, codec = stored
    whole = (folder / "shard").read_bytes()
    read_all(folder, codec)
    rng = np.random.default_rng(0)
    for position in rng.choice(len(whole), 100, replace=False):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(8))
        (folder / "shard").write_bytes(damaged)
        with pytest.raises(CorruptionError, match="chunk_corrupt|object_truncated|chunk_missing"):
            read_all(folder, codec)


@pytest.mark.parametrize("chunk", range(3))
def test_damage_names_the_place(stored: tuple[Path, ChunkCodec], chunk: int) -> None:
    folder, codec = stored
    damaged = bytearray((folder / "shard").read_bytes())
    offset = int(open_decoder(folder, codec, 4).index[chunk, 0])
    damaged[offset + 5] ^= 1
    (folder / "shard").write_bytes(damaged)
    with pytest.raises(CorruptionError) as caught:
        read_all(folder, codec)
    assert (caught.value.array, caught.value.shard, caught.value.chunk) == ("a", 0, chunk)
    assert caught.value.sample_id == "the-sample"
    assert str(folder) in str(caught.value)


def test_every_truncation_is_found(stored: tuple[Path, ChunkCodec]) -> None:
    folder, codec = stored
    whole = (folder / "shard").read_bytes()
    for size in range(len(whole)):
        (folder / "shard").write_bytes(whole[:size])
        with pytest.raises(CorruptionError):
            read_all(folder, codec)


def test_an_index_that_is_whole_but_points_nowhere(stored: tuple[Path, ChunkCodec]) -> None:
    """What a faulty writer could leave, and a checksum can't show."""
    folder, codec = stored
    whole = (folder / "shard").read_bytes()
    end = len(whole) - index_bytes(4)
    for entry in [(end, 8), (2**63, 8), (0, 2**63), (0, 3), (2**64 - 2, 4), (0, end + 1), (4, 16)]:
        index = np.frombuffer(whole[end:-4], "<u8").reshape(4, 2).copy()
        index[1] = entry
        tail = index.tobytes()
        (folder / "shard").write_bytes(whole[:end] + tail + crc32c(tail).to_bytes(4, "little"))
        with pytest.raises(CorruptionError, match="chunk 1") as caught:
            read_all(folder, codec)
        assert caught.value.kind in {"object_truncated", "chunk_corrupt"}


def test_missing_object(stored: tuple[Path, ChunkCodec]) -> None:
    folder, codec = stored
    (folder / "shard").unlink()
    with pytest.raises(CorruptionError, match="object_missing"):
        read_all(folder, codec)


def test_wrong_checksum_may_be_accepted_when_asked(tmp_path: Path) -> None:
    codec = ChunkCodec(profile=Codec.NONE, dtype=np.dtype("<f2"), shape=(16, 8))
    damaged = bytearray(encoded(codec, 0, 2)[1])
    damaged[5] ^= 1
    (tmp_path / "shard").write_bytes(damaged)
    out = np.empty((16, 8), dtype=np.float16)
    open_decoder(tmp_path, codec, 2).read(range(1), out, "s", verify=False)
    assert out.tobytes() == bytes(damaged[: out.nbytes])


def test_a_chunk_has_one_place() -> None:
    codec = ChunkCodec(profile=Codec.NONE, dtype=np.dtype("<f2"), shape=(16, 8))
    encoder, chunk = ShardEncoder(2), codec.encode(np.zeros((16, 8), np.float16))
    encoder.add(1, chunk)
    with pytest.raises(ValueError, match="chunk 1"):
        encoder.add(1, chunk)


def test_the_objects_own_crc_is_blind_where_the_chunks_one_sees() -> None:
    codec = ChunkCodec(profile=Codec.NONE, dtype=np.dtype("<f2"), shape=(16, 8))
    (one, _), (other, _) = encoded(codec, 0), encoded(codec, 1)
    assert one.object_crc32c == other.object_crc32c
    assert one.chunks_crc32c != other.chunks_crc32c


def test_the_chunks_checksum_does_not_depend_on_their_order() -> None:
    codec = ChunkCodec(profile=Codec.NONE, dtype=np.dtype("u1"), shape=(4,))
    chunks = [codec.encode(np.full(4, number, np.uint8)) for number in range(3)]
    found = set()
    for order in itertools.permutations(range(3)):
        encoder = ShardEncoder(5)
        for number in order:
            encoder.add(number, chunks[number])
        found.add(encoder.chunks_crc32c)
    assert found == {crc32c(b"".join(chunk.crc32c.to_bytes(4, "little") for chunk in chunks))}
