"""The local part of a far set: an S3 server on loopback, and what still has to be asked of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3fs import S3FileSystem

from eagle3data import Dataset, StreamingLoader, open_dataset
from eagle3data.readers.sample_cache import SampleCache
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.manifest import Codec
from eagle3data.storage.root import Root
from tests.storage.faulty_proxy import FaultyProxy
from tests.support import random_samples, small_manifest, write_set

MANIFEST = small_manifest(shard_tokens=256)
SAMPLES = {sample.sample_id: sample for sample in random_samples(24, MANIFEST, longest=90)}
BUDGET = 200
ARRAYS = len(MANIFEST.layers) + 2
"""Reads a sample: every layer, ids and mask."""

_RANK = """
import json, sys
from eagle3data import StreamingLoader, open_dataset
url, cache, limit, rank = sys.argv[1:]
dataset = open_dataset(url, cache=cache, cache_bytes=int(limit))
loader = StreamingLoader(dataset, token_budget=200, threads=4, rank=int(rank), world_size=2)
print(json.dumps([name for batch in loader for name in batch.sample_ids]))
"""

_KILLED = """
import os, signal, sys
from eagle3data import StreamingLoader, open_dataset
from eagle3data.storage import cache_folder
write_all, calls = cache_folder.write_all, []
def write(descriptor, parts):
    calls.append(descriptor)
    if len(calls) == 20:
        write_all(descriptor, parts[:1])
        os.kill(os.getpid(), signal.SIGKILL)
    return write_all(descriptor, parts)
cache_folder.write_all = write
dataset = open_dataset(sys.argv[1], cache=sys.argv[2], cache_bytes=1 << 30)
for batch in StreamingLoader(dataset, token_budget=200, threads=4, rank=0, world_size=1):
    pass
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_set(tmp_path_factory.mktemp("cache") / "set", list(SAMPLES.values()), MANIFEST)


@pytest.fixture
def proxy(endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with FaultyProxy(endpoint).running() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        S3FileSystem.clear_instance_cache()  # they keep the environment that they were made in
        yield proxy
    S3FileSystem.clear_instance_cache()


def _epoch(dataset: Dataset, epoch: int = 0, **settings: Any) -> StreamingLoader:
    """One epoch whose every sample is looked at."""
    loader = StreamingLoader(dataset, token_budget=BUDGET, threads=4, **settings)
    loader.set_epoch(epoch)
    names: list[str] = []
    for batch in loader:
        names += batch.sample_ids
        for name, (first, last) in zip(
            batch.sample_ids, pairwise(batch.cu_seqlens.tolist()), strict=True
        ):
            sample = SAMPLES[name]
            assert np.array_equal(batch.input_ids[first:last].numpy(), sample.input_ids)
            for layer, states in zip(batch.layers, batch.hidden_states, strict=True):
                assert np.array_equal(states[first:last].numpy(), sample.hidden_states[layer])
    assert sorted(names) == sorted(SAMPLES)
    return loader


def _cache(dataset: Dataset) -> SampleCache:
    assert dataset.cache is not None
    return dataset.cache


def _asked(proxy: FaultyProxy) -> tuple[int, int]:
    """Ranged requests, and bytes that they asked for, since this was last called."""
    ranges = [seen[2]["range"] for seen in proxy.seen if "range" in seen[2]]
    ranges += [seen[2]["Range"] for seen in proxy.seen if "Range" in seen[2]]
    proxy.seen.clear()
    bounds = [text.removeprefix("bytes=").split("-") for text in ranges]
    return len(bounds), sum(int(last) - int(first) + 1 for first, last in bounds)


def _copies(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("*/*/*/*") if path.is_file())


def _half(url: str) -> int:
    """About half of the bytes of a set's shards."""
    return sum(Root(url).sizes("hidden_states").values()) // 2


def test_the_second_epoch_asks_for_the_rest_only(
    bucket: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    far = write_set(f"{bucket}/far", list(SAMPLES.values()), MANIFEST)
    dataset = open_dataset(far, cache=tmp_path / "cache", cache_bytes=_half(far))
    proxy.seen.clear()
    first = _epoch(dataset).metrics.cache
    requests, nbytes = _asked(proxy)
    assert first is not None
    assert (first.hits, first.misses) == (0, len(SAMPLES) * ARRAYS)
    cache = _cache(dataset)
    assert 0.3 < cache.share < 0.7
    kept = int(cache.kept.sum())
    assert len(_copies(tmp_path / "cache")) == kept * ARRAYS
    assert cache.folder.used() <= cache.folder.limit
    for epoch in (1, 2):
        loader = _epoch(dataset, epoch)
        later, later_bytes = _asked(proxy)
        counts = loader.metrics.cache
        assert counts is not None
        assert (counts.hits, counts.mended) == (kept * ARRAYS, 0)
        assert later == counts.misses == (len(SAMPLES) - kept) * ARRAYS
        assert later_bytes == counts.miss_bytes
        assert abs(counts.hit_share - cache.share) < 0.05
        assert f"{counts.hit_share:.1%} of the bytes from the cache" in str(loader.metrics)
        assert (later, later_bytes) < (requests, nbytes)


def test_with_all_of_it_no_shard_is_needed(tmp_path: Path) -> None:
    url = write_set(tmp_path / "set", list(SAMPLES.values()), MANIFEST)
    _epoch(open_dataset(url, cache=tmp_path / "cache", cache_bytes=1 << 30))
    for array in ("hidden_states", "input_ids", "loss_mask"):
        shutil.rmtree(tmp_path / "set" / array)
    again = open_dataset(url, cache=tmp_path / "cache", cache_bytes=1 << 30)
    _epoch(again, 1)
    assert _cache(again).share == 1


def test_what_is_kept_is_a_function_of_the_generation(here: str, tmp_path: Path) -> None:
    limits = [0, _half(here) // 2, _half(here), 1 << 30]
    kept = [
        _cache(open_dataset(here, cache=tmp_path / str(limit), cache_bytes=limit)).kept
        for limit in limits
    ]
    assert [int(one.sum()) for one in (kept[0], kept[-1])] == [0, len(SAMPLES)]
    for less, more in pairwise(kept):
        assert not (less & ~more).any()
        assert less.sum() < more.sum()
    again = open_dataset(here, cache=tmp_path / "other", cache_bytes=limits[2])
    assert np.array_equal(_cache(again).kept, kept[2])


def test_ranks_share_what_each_of_them_fetched(here: str, tmp_path: Path) -> None:
    limit = _half(here)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, here, str(tmp_path), str(limit), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [json.loads(rank.communicate()[0]) for rank in ranks]
    assert sorted(told[0] + told[1]) == sorted(SAMPLES)
    dataset = open_dataset(here, cache=tmp_path, cache_bytes=limit)
    counts = _epoch(dataset, 1).metrics.cache
    cache = _cache(dataset)
    assert counts is not None
    assert counts.hits == int(cache.kept.sum()) * ARRAYS
    assert cache.folder.used() == sum(path.stat().st_size for path in _copies(tmp_path)) <= limit


def test_a_process_killed_while_it_fills(here: str, tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, here, str(tmp_path)], env={**os.environ}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    dataset = open_dataset(here, cache=tmp_path, cache_bytes=1 << 30)
    there = len(_copies(tmp_path))
    assert 0 < there < len(SAMPLES) * ARRAYS
    counts = _epoch(dataset).metrics.cache
    assert counts is not None
    assert (counts.hits, counts.mended) == (there, 0)
    assert _cache(dataset).folder.used() == sum(one.stat().st_size for one in _copies(tmp_path))


@pytest.mark.parametrize("verify", ["bytes", "none"])
@pytest.mark.parametrize("damage", ["bit", "short", "empty", "header"])
def test_damaged_copies_are_mended(here: str, tmp_path: Path, damage: str, verify: Any) -> None:
    dataset = open_dataset(here, cache=tmp_path, cache_bytes=1 << 30)
    _epoch(dataset)
    copies = _copies(tmp_path)
    whole = {path: path.read_bytes() for path in copies}
    for path, data in list(whole.items())[::3]:
        changed = {
            "bit": data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
            "short": data[: len(data) // 2],
            "empty": b"",
            "header": bytes([data[0] ^ 1]) + data[1:],
        }[damage]
        path.unlink()
        path.write_bytes(changed)
    counts = _epoch(dataset, 1, verify=verify).metrics.cache
    assert counts is not None
    assert counts.mended == len(copies[::3]) == counts.misses
    assert {path: path.read_bytes() for path in _copies(tmp_path)} == whole
    counts = _epoch(dataset, 2).metrics.cache
    assert counts is not None
    assert (counts.mended, counts.misses) == (0, 0)


def test_damage_in_the_set_is_told_and_never_kept(tmp_path: Path) -> None:
    url = write_set(tmp_path / "set", list(SAMPLES.values()), MANIFEST)
    shard = tmp_path / "set" / "hidden_states/2/c/0/0"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.unlink()
    shard.write_bytes(data)
    dataset = open_dataset(url, cache=tmp_path / "cache", cache_bytes=1 << 30)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="chunk_corrupt"):
            _epoch(dataset)
    skipping = StreamingLoader(dataset, token_budget=BUDGET, on_error="skip")
    for _ in range(2):
        list(skipping)
    assert skipping.skipped == 2


def test_a_lower_limit_makes_room(here: str, tmp_path: Path) -> None:
    _epoch(open_dataset(here, cache=tmp_path, cache_bytes=1 << 30))
    limit = _half(here)
    dataset = open_dataset(here, cache=tmp_path, cache_bytes=limit)
    counts = _epoch(dataset).metrics.cache
    cache = _cache(dataset)
    assert counts is not None
    assert counts.hits == int(cache.kept.sum()) * ARRAYS
    assert cache.folder.used() <= limit


def test_room_goes_to_the_layers_that_are_read(here: str, tmp_path: Path) -> None:
    limit = _half(here)
    few = open_dataset(here, cache=tmp_path / "few", cache_bytes=limit)
    StreamingLoader(few, token_budget=BUDGET, layers=MANIFEST.layers[:2])
    every = open_dataset(here, cache=tmp_path / "all", cache_bytes=limit)
    assert _cache(few).share > _cache(every).share


def test_compressed_sets_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    manifest = small_manifest(shard_tokens=256, codec=Codec.LZ4)
    url = write_set(tmp_path / "set", list(SAMPLES.values()), manifest)
    limit = sum(Root(url).sizes("hidden_states").values()) // 2
    dataset = open_dataset(url, cache=tmp_path / "cache", cache_bytes=limit)
    _epoch(dataset)
    cache = _cache(dataset)
    assert 0.7 * limit < cache.folder.used() <= limit
    counts = _epoch(dataset, 1).metrics.cache
    assert counts is not None
    assert counts.hits > 0


def test_pieces_of_long_samples_come_from_it_too(here: str, tmp_path: Path) -> None:
    dataset = open_dataset(here, cache=tmp_path, cache_bytes=1 << 30)
    plain = open_dataset(here)
    settings: dict[str, Any] = {"token_budget": 37, "over_budget": "split"}
    for epoch in range(2):
        loader, expected = StreamingLoader(dataset, **settings), StreamingLoader(plain, **settings)
        loader.set_epoch(epoch)
        expected.set_epoch(epoch)
        for batch, other in zip(loader, expected, strict=True):
            assert batch.hidden_states.equal(other.hidden_states)
            assert batch.input_ids.equal(other.input_ids)
    counts = loader.metrics.cache
    assert counts is not None
    assert (counts.misses, counts.mended) == (0, 0)


def test_single_samples_come_from_it_too(here: str, tmp_path: Path) -> None:
    dataset = open_dataset(here, cache=tmp_path, cache_bytes=1 << 30)
    for _ in range(2):
        for name, sample in SAMPLES.items():
            assert np.array_equal(dataset.get(name).input_ids, sample.input_ids)
    counts = _cache(dataset).counts
    assert counts.hits == counts.misses == len(SAMPLES) * ARRAYS


def test_half_a_setting_is_refused(here: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="both cache and cache_bytes"):
        open_dataset(here, cache=tmp_path)
    with pytest.raises(InputError, match="cache_bytes is -1"):
        open_dataset(here, cache=tmp_path, cache_bytes=-1)
