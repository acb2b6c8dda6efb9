"""Any bit flipped, any object cut off or gone: an error that says so, or the right numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from eagle3data import open_dataset
from eagle3data.schema.errors import CorruptionError, Eagle3DataError
from eagle3data.schema.manifest import Codec, Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage import layout
from eagle3data.storage.codecs import CHECKSUM_BYTES
from eagle3data.storage.root import Root
from eagle3data.storage.shard_encoder import NOT_STORED, index_bytes
from tests.support import random_samples, small_manifest, write_set


class Victim:
    """A data set on a local disk that is damaged in one place at a time.

    Attributes:
        samples: all of them, as they were written.
        shard_of: shard of each.
    """

    def __init__(self, folder: Path, codec: Codec) -> None:
        self.folder = folder
        self.manifest: Manifest = small_manifest(codec=codec)
        self.samples = random_samples(9, self.manifest)
        for number, sample in enumerate(self.samples):
            sample.source, sample.source_extra = f"file:{number}", {"turn": str(number)}
            sample.witness_token, sample.witness_logprob = number, -0.5 * number
        self.url = write_set(folder, self.samples, self.manifest)
        dataset = open_dataset(self.url)
        offsets = dataset.index["token_offset"].to_numpy()
        self.shard_of: list[int] = (offsets // self.manifest.storage.shard_tokens).tolist()

    def objects(self, shard: int) -> list[str]:
        """Every array's object of a shard."""
        names = layout.array_names(self.manifest)
        return [layout.shard_object(array, shard) for array in names]

    @property
    def shards(self) -> list[int]:
        return sorted(set(self.shard_of))

    @contextmanager
    def changed(self, name: str, change: Callable[[bytes], bytes | None]) -> Iterator[None]:
        """One object other than it was; None removes it."""
        path, aside = self.folder / name, self.folder.with_name("aside")
        damaged = change(path.read_bytes())
        path.rename(aside)
        if damaged is not None:
            path.write_bytes(damaged)
        try:
            yield
        finally:
            aside.rename(path)

    def read(self, shard: int | None = None) -> list[Exception]:
        """Open the set and read a shard's samples, or all; the errors.

        Raises:
            AssertionError: a sample is not what was written, or there are fewer or more.
        """
        try:
            dataset = open_dataset(self.url, threads=1)
        except Eagle3DataError as error:
            return [error]
        assert len(dataset) == len(self.samples)
        errors: list[Exception] = []
        for position, sample in enumerate(self.samples):
            if shard is None or self.shard_of[position] == shard:
                try:
                    found = dataset[position]
                except Eagle3DataError as error:
                    errors.append(error)
                else:
                    assert facts(found) == facts(sample)
        return errors


def facts(sample: Sample) -> tuple[object, ...]:
    """All that a sample holds, states by their bits."""
    states = {
        layer: (rows.dtype.str, rows.shape, rows.tobytes())
        for layer, rows in sample.hidden_states.items()
    }
    return (
        states,
        sample.input_ids.tolist(),
        sample.loss_mask.tolist(),
        sample.sample_id,
        sample.source,
        sample.split,
        dict(sample.source_extra),
        sample.witness_token,
        sample.witness_logprob,
    )


@pytest.fixture(scope="module", params=list(Codec))
def victim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim(tmp_path_factory.mktemp("damage") / "set", request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim(tmp_path_factory.mktemp("damage") / "set", Codec.NONE)


def flip(bit: int) -> Callable[[bytes], bytes]:
    def change(whole: bytes) -> bytes:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)

    return change


def cut(size: int) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:size]


def remove(_: bytes) -> None:
    return None


# Objects of arrays: whatever is flipped is found.


def regions(victim: Victim, name: str) -> dict[str, npt.NDArray[np.int64]]:
    """Which bytes of an array's object are what."""
    whole = (victim.folder / name).read_bytes()
    chunks = victim.manifest.storage.axis.chunks_per_shard
    end = len(whole) - index_bytes(chunks)
    index = np.frombuffer(whole[end:], "<u8", 2 * chunks).reshape(chunks, 2)
    stored = index[index[:, 0] != NOT_STORED].astype(np.int64).tolist()
    checksums = [
        np.arange(offset + size - CHECKSUM_BYTES, offset + size) for offset, size in stored
    ]
    return {
        "payload": np.setdiff1d(np.arange(end), checksums),
        "chunk checksums": np.concatenate(checksums),
        "shard index": np.arange(end, len(whole) - CHECKSUM_BYTES),
        "its checksum": np.arange(len(whole) - CHECKSUM_BYTES, len(whole)),
    }


def flip_arrays(victim: Victim, flips: int, seed: int) -> Counter[str]:
    """So many flips a region of each array object; how many errors came of those in each."""
    rng = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for shard in victim.shards:
        for name in victim.objects(shard):
            for region, places in regions(victim, name).items():
                for byte in rng.choice(places, flips).tolist():
                    with victim.changed(name, flip(byte * 8 + int(rng.integers(8)))):
                        errors = victim.read(shard)
                    assert errors, f"{name}, {region}, byte {byte}: nothing was noticed"
                    require_named(errors, name, shard)
                    found[region] += 1
    return found


def require_named(errors: Iterable[Exception], name: str, shard: int) -> None:
    """Each error says what is damaged, and whose numbers are lost."""
    for error in errors:
        assert isinstance(error, CorruptionError)
        assert error.array == name.partition("/c/")[0]
        assert error.shard == shard


def test_a_flipped_bit_of_an_array_object_is_found(victim: Victim) -> None:
    assert victim.read() == []
    found = flip_arrays(victim, 1, 0)
    assert set(found) == {"payload", "chunk checksums", "shard index", "its checksum"}
    assert found.total() >= 160
    assert victim.read() == []


@pytest.mark.soak
def test_ten_times_as_many_flipped_bits_are_found(victim: Victim) -> None:
    print(victim.manifest.storage.codec, dict(flip_arrays(victim, 10, 1)))


def test_an_array_object_that_was_cut_off_is_found(victim: Victim) -> None:
    rng, shard = np.random.default_rng(0), victim.shards[1]
    for name in victim.objects(shard):
        size = (victim.folder / name).stat().st_size
        for left in [0, 1, size - 1, size - 4, size // 2, *rng.integers(0, size, 5).tolist()]:
            with victim.changed(name, cut(left)):
                errors = victim.read(shard)
            assert errors, f"{name} with {left} of {size} bytes"
            require_named(errors, name, shard)


def test_an_array_object_that_is_gone_is_missed(victim: Victim) -> None:
    for shard in victim.shards:
        for name in victim.objects(shard):
            with victim.changed(name, remove):
                errors = victim.read()
            require_named(errors, name, shard)
            assert len(errors) == victim.shard_of.count(shard)
            assert {getattr(error, "kind", None) for error in errors} == {"object_missing"}


# Index, plan and metadata: what is flipped is found, or makes no difference to any sample.


def flip_document(victim: Victim, name: str, flips: int, seed: int) -> Counter[str]:
    """So many flips of an object; what came of them."""
    rng = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for bit in rng.integers(0, 8 * (victim.folder / name).stat().st_size, flips).tolist():
        with victim.changed(name, flip(bit)):
            errors = victim.read()
        found["found" if errors else "no difference"] += 1
    return found


@contextmanager
def without_the_gathered_index(victim: Victim) -> Iterator[None]:
    path, aside = victim.folder / layout.ALL_PARTS, victim.folder.with_name("all.arrow")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


def flip_documents(victim: Victim, flips: int, seed: int) -> dict[str, dict[str, int]]:
    names = [layout.GROUP, layout.ALL_PARTS, layout.plan_segment(1), layout.index_part(1)]
    found = {name: dict(flip_document(victim, name, flips, seed)) for name in names}
    with without_the_gathered_index(victim):
        alone = dict(flip_document(victim, layout.index_part(1), flips, seed))
    return {**found, "index part alone": alone}


def test_a_flipped_bit_elsewhere_changes_no_sample(plain: Victim) -> None:
    found = flip_documents(plain, 50, 0)
    # Readers do not look at the plan, nor at a part that the gathered index holds.
    assert found[layout.plan_segment(1)] == found[layout.index_part(1)] == {"no difference": 50}
    for name in (layout.GROUP, layout.ALL_PARTS, "index part alone"):
        assert found[name]["found"] >= 5, (name, found)


@pytest.mark.soak
def test_ten_times_as_many_flipped_bits_elsewhere(plain: Victim) -> None:
    print(flip_documents(plain, 500, 1))


def test_a_flipped_bit_of_the_plan_is_found(plain: Victim) -> None:
    rng, name = np.random.default_rng(0), layout.plan_segment(1)
    root = Root(plain.url)
    planned = layout.read_plan(root)
    found: Counter[str] = Counter()
    for bit in rng.integers(0, 8 * (plain.folder / name).stat().st_size, 1000).tolist():
        with plain.changed(name, flip(bit)):
            try:
                assert layout.read_plan(root).equals(planned)
            except Eagle3DataError:
                found["found"] += 1
    assert found["found"] > 100


def tokens_in(data: bytes, column: str) -> list[range]:
    """The bits of each row's items in a gathered index."""
    buffer = pa.py_buffer(data)
    reader = pa.ipc.open_file(pa.BufferReader(buffer))
    bits = {"input_ids": 32, "loss_mask": 1}[column]
    places = []
    for number in range(reader.num_record_batches):
        rows: Any = reader.get_batch(number).column(column)
        values = rows.values.buffers()[1]
        start = 8 * (values.address - buffer.address)
        edges = [start + bits * offset for offset in rows.offsets.to_pylist()]
        places += [range(*edge) for edge in pairwise(edges)]
    return places


@pytest.mark.parametrize("column", ["input_ids", "loss_mask"])
def test_flipped_tokens_of_the_gathered_index_are_found(plain: Victim, column: str) -> None:
    """The gathered index has no checksum over them: the shard's own are compared."""
    rng = np.random.default_rng(0)
    places = tokens_in((plain.folder / layout.ALL_PARTS).read_bytes(), column)
    assert len(places) == len(plain.samples)
    for sample, bits in zip(plain.samples, places, strict=True):
        for bit in rng.choice(np.array(bits), 5).tolist():
            with plain.changed(layout.ALL_PARTS, flip(bit)):
                errors = plain.read()
            assert [getattr(error, "sample_id", None) for error in errors] == [sample.sample_id]
            assert getattr(errors[0], "kind", None) == "tokens_differ"


def test_an_index_that_was_cut_off(plain: Victim) -> None:
    """The gathered one can be done without, a part can't."""
    rng = np.random.default_rng(0)
    for name, does_without in [(layout.ALL_PARTS, True), (layout.index_part(1), False)]:
        size = (plain.folder / name).stat().st_size
        for left in [0, 1, size - 1, size - 8, size // 2, *rng.integers(0, size, 15).tolist()]:
            if does_without:
                with plain.changed(name, cut(left)):
                    assert plain.read() == []
            else:
                with without_the_gathered_index(plain), plain.changed(name, cut(left)):
                    (error,) = plain.read()
                assert isinstance(error, CorruptionError)


def test_a_manifest_that_was_cut_off(plain: Victim) -> None:
    size = (plain.folder / layout.GROUP).stat().st_size
    for left in range(0, size, 37):
        with plain.changed(layout.GROUP, cut(left)):
            (error,) = plain.read()
        assert isinstance(error, Eagle3DataError)


def test_an_index_part_that_is_gone_takes_its_samples_with_it(plain: Victim) -> None:
    """It was the commit; the gathered index doesn't serve what is no longer committed."""
    with plain.changed(layout.index_part(1), remove):
        dataset = open_dataset(plain.url)
        kept = [
            sample
            for sample, shard in zip(plain.samples, plain.shard_of, strict=True)
            if shard != 1
        ]
        assert [facts(sample) for sample in dataset] == [facts(sample) for sample in kept]
    assert plain.read() == []
