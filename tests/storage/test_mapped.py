"""Local reads: a file that shrinks under its reader is an error, never a dead process.

A read of a mapped page that is gone kills the process, so each test that takes pages away runs
in a process of its own.
"""

from __future__ import annotations

import itertools
import mmap
import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from eagle3data import open_dataset
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import Codec
from eagle3data.storage import layout, mapped
from eagle3data.storage.codecs import ChunkCodec
from eagle3data.storage.mapped import LocalObject
from eagle3data.storage.root import Root
from eagle3data.storage.shard_decoder import ShardDecoder
from eagle3data.storage.shard_encoder import ShardEncoder
from tests.storage.processes import exit_code
from tests.support import random_samples, same_sample, small_manifest, write_set

BYTES = 3 * (1 << 20) + 77
WHOLE = np.random.default_rng(0).bytes(BYTES)
RANGES = [(0, BYTES), (BYTES - 5, BYTES), (1 << 20, 2 << 20), (BYTES // 2, BYTES // 2 + 9), (7, 7)]


@pytest.fixture(params=["map", "pread"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def reading_by(way: str) -> AbstractContextManager[Any]:
    return mock.patch.object(mapped, "is_local_disk", return_value=way == "map")


def smaller_sizes(whole: bytes) -> list[int]:
    """Nothing, half, and what still ends in the same page."""
    return [0, len(whole) // 2, len(whole) - 1]


def read_a_map_without_a_look_at_the_size(path: Path) -> None:
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.truncate(path, 0)
    whole[len(whole) // 2]


def test_the_danger_is_real(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(WHOLE)
    code = exit_code(read_a_map_without_a_look_at_the_size, tmp_path / "object")
    assert code == -signal.SIGBUS


def shrink_an_object(path: Path, way: str) -> None:
    for size, touched in itertools.product(smaller_sizes(WHOLE), [True, False]):
        path.write_bytes(WHOLE)
        with reading_by(way):
            found = LocalObject(str(path))
        if touched:
            assert found.read(0, BYTES).tobytes() == WHOLE
        os.truncate(path, size)
        for start, stop in RANGES:
            assert found.read(start, stop).tobytes() == WHOLE[start : min(stop, size)]
        assert found.size == BYTES


def test_a_file_that_shrinks_gives_fewer_bytes(tmp_path: Path, way: str) -> None:
    assert exit_code(shrink_an_object, tmp_path / "object", way) == 0


def shrink_a_shard(folder: Path, way: str, profile: Codec) -> None:
    codec = ChunkCodec(profile=profile, dtype=np.dtype("<f2"), shape=(1 << 12, 8))
    rng, encoder, parts = np.random.default_rng(0), ShardEncoder(8), []
    for number in range(8):
        values = rng.standard_normal(codec.shape).astype(np.float16)
        parts += encoder.add(number, codec.encode(values))
    whole, out = b"".join([*parts, *encoder.finish()]), np.empty(codec.shape, np.float16)
    for size in [*smaller_sizes(whole), len(whole) - 200]:
        (folder / "shard").write_bytes(whole)
        with reading_by(way):
            decoder = ShardDecoder(
                Root(str(folder)), codec, array="a", shard=0, name="shard", chunks=8
            )
        decoder.read(range(1), out, "the-sample")
        os.truncate(folder / "shard", size)
        for number, (offset, length) in enumerate(decoder.index.tolist()):
            chunk = range(number, number + 1)
            if offset + length <= size:
                decoder.read(chunk, out, "the-sample")
                continue
            with pytest.raises(CorruptionError, match="object_truncated.*sample the-sample"):
                decoder.read(chunk, out, "the-sample")


@pytest.mark.parametrize("profile", Codec)
def test_a_shard_that_shrinks_is_corruption(tmp_path: Path, way: str, profile: Codec) -> None:
    assert exit_code(shrink_a_shard, tmp_path, way, profile) == 0


def shrink_a_data_set(folder: Path, threads: int) -> None:
    manifest = small_manifest(shard_tokens=2048)
    samples = random_samples(15, manifest)
    url = write_set(folder / "set", samples, manifest)
    path = Path(url) / layout.shard_object("hidden_states/9", 0)
    whole = path.read_bytes()
    for size in [*smaller_sizes(whole), len(whole) // 3]:
        path.write_bytes(whole)
        dataset = open_dataset(url, threads=threads)
        assert all(map(same_sample, dataset, samples))
        os.truncate(path, size)
        failed = []
        for position, sample in enumerate(samples):
            try:
                assert same_sample(dataset[position], sample)
            except CorruptionError as error:
                failed.append((error.sample_id, error.kind, error.array))
        wrong = ("object_truncated", "hidden_states/9")
        assert all((kind, array) == wrong for _, kind, array in failed)
        # The last byte is the index's, which was read when the shard was opened.
        assert bool(failed) == (size < len(whole) - 1)
        with pytest.raises(CorruptionError, match=r"hidden_states/9, shard 0"):
            open_dataset(url)[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_data_set_whose_file_shrinks(tmp_path: Path, threads: int) -> None:
    assert exit_code(shrink_a_data_set, tmp_path, threads) == 0


def replace_a_shard(folder: Path, way: str) -> None:
    manifest = small_manifest(shard_tokens=2048)
    samples = random_samples(15, manifest)
    url = write_set(folder / "set", samples, manifest)
    path = Path(url) / layout.shard_object("hidden_states/9", 0)
    with reading_by(way):
        dataset = open_dataset(url)
        assert same_sample(dataset[0], samples[0])
        path.unlink()
        assert all(map(same_sample, dataset, samples))
        with pytest.raises(CorruptionError, match="object_missing"):
            open_dataset(url)[0]
        path.write_bytes(b"another object" * 1000)
        assert all(map(same_sample, dataset, samples))
        with pytest.raises(CorruptionError, match="chunk_corrupt"):
            open_dataset(url)[0]


def test_an_object_that_is_removed_and_replaced_stays_what_it_was(tmp_path: Path, way: str) -> None:
    """For who has it open; who opens it then finds out."""
    assert exit_code(replace_a_shard, tmp_path, way) == 0


def test_an_empty_file_and_one_that_grows(tmp_path: Path, way: str) -> None:
    path = tmp_path / "object"
    path.write_bytes(b"")
    with reading_by(way):
        empty = LocalObject(str(path))
        assert (empty.size, empty.read(0, 5).tobytes()) == (0, b"")
        path.write_bytes(b"abc")
        found = LocalObject(str(path))
    with path.open("ab") as file:
        file.write(b"def")
    assert found.size == 3
    assert found.read(0, 3).tobytes() == b"abc"


def test_what_is_no_file(tmp_path: Path, way: str) -> None:
    with reading_by(way):
        with pytest.raises(FileNotFoundError):
            LocalObject(str(tmp_path / "nothing"))
        with pytest.raises(OSError, match="directory"):
            LocalObject(str(tmp_path))


def test_descriptors_are_given_back(tmp_path: Path, way: str) -> None:
    (tmp_path / "object").write_bytes(WHOLE)
    before = len(os.listdir("/proc/self/fd"))
    with reading_by(way):
        several = [LocalObject(str(tmp_path / "object")) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 20
    del several
    assert len(os.listdir("/proc/self/fd")) == before
