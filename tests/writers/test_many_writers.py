"""Several writers of one set, and of one shard: one winner, no mix, nothing lost."""

from __future__ import annotations

import multiprocessing
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data import DatasetWriter, open_dataset
from eagle3data.schema.errors import AlreadyExistsError, LostClaimError
from eagle3data.storage import layout
from eagle3data.storage.claims import Claims, shard_name
from eagle3data.storage.local import Buffer
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import create_data_set
from eagle3data.writers.shard_writer import ShardWriter
from tests.support import random_sample, same_sample, small_manifest

WRITE = """
import sys
from eagle3data import DatasetWriter
from tests.support import random_sample, small_manifest
url, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
manifest = small_manifest()
with DatasetWriter.resume(url) as writer:
    for number in range(first, first + count):
        writer.append(random_sample(f"s{number}", 40 + number % 20, number, manifest))
"""


def _begin(url: Path) -> None:
    with DatasetWriter.create(str(url), small_manifest()):
        pass


def _writer(url: Path, first: int, count: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", WRITE, str(url), str(first), str(count)]
    return subprocess.Popen(words, cwd=Path(__file__).parents[2])


def _holds(url: Path, numbers: range) -> bool:
    manifest = small_manifest()
    dataset = open_dataset(str(url))
    return all(
        same_sample(
            dataset.get(f"s{number}"),
            random_sample(f"s{number}", 40 + number % 20, number, manifest),
        )
        for number in numbers
    )


def test_three_processes_append_to_one_set(tmp_path: Path) -> None:
    url = tmp_path / "set"
    _begin(url)
    processes = [_writer(url, first, 30) for first in (0, 30, 60)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    dataset = open_dataset(str(url))
    assert len(dataset) == 90
    assert _holds(url, range(90))
    assert list((url / "claims").iterdir()) == []
    assert layout.committed_shards(Root(str(url))) == list(
        range(max(layout.committed_shards(Root(str(url)))) + 1)
    )


def test_a_killed_writer_hinders_nobody(tmp_path: Path) -> None:
    url = tmp_path / "set"
    _begin(url)
    rng = random.Random(0)
    for round_ in range(3):
        victim = _writer(url, 1000 * (round_ + 1), 400)
        parts = 2 * round_ + rng.randint(1, 3)
        while victim.poll() is None and len(list((url / "index").glob("0*.arrow"))) < parts:
            pass
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert _writer(url, 0, 30).wait() == 0
    assert _holds(url, range(30))
    dataset = open_dataset(str(url))
    for name in dataset.index["sample_id"].to_pylist():
        number = int(str(name)[1:])
        assert _holds(url, range(number, number + 1))
    assert [path.name for path in (url / ".tmp").iterdir()] == []


def _shard_writer(url: Path, seed: int, claims: Claims) -> ShardWriter:
    manifest = small_manifest()
    claim = claims.acquire(shard_name(0))
    assert claim is not None
    writer = ShardWriter(Root(str(url)), manifest, 0, claim)
    writer.append(random_sample("s0", 40, seed, manifest), 0)
    return writer


@pytest.fixture
def url(tmp_path: Path) -> Path:
    create_data_set(Root(str(tmp_path / "set")), small_manifest(), 1)
    return tmp_path / "set"


def _is_sample(url: Path, seed: int) -> bool:
    return same_sample(open_dataset(str(url))[0], random_sample("s0", 40, seed, small_manifest()))


def test_the_second_of_two_on_one_shard_is_refused(url: Path) -> None:
    root = Root(str(url))
    with Claims(root) as claims:
        _shard_writer(url, 1, claims).commit()
        claims.release(shard_name(0))
        with pytest.raises(AlreadyExistsError):
            _shard_writer(url, 2, claims).commit()
    assert _is_sample(url, 1)


def test_a_takeover_at_any_moment_of_a_commit(url: Path) -> None:
    """Wherever the two meet, the set holds one of them whole, or neither: then a third can."""
    context = multiprocessing.get_context("fork")
    root = Root(str(url))
    for seed in range(0, 60, 2):
        for array in layout.array_names(small_manifest()):
            root.delete(layout.shard_object(array, 0))
        root.delete(layout.index_part(0))
        barrier = context.Barrier(2)
        processes = [
            context.Process(target=target, args=(url, seed, barrier))
            for target in (_commit, _take_over_and_commit)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        if layout.committed_shards(root):
            assert any(_is_sample(url, seed + which) for which in range(2))
            continue
        with Claims(root) as claims:
            _shard_writer(url, seed, claims).commit()
        assert _is_sample(url, seed)


def _commit(url: Path, seed: int, barrier: Any) -> None:
    with Claims(Root(str(url))) as claims:
        writer = _shard_writer(url, seed, claims)
        barrier.wait()
        _wait_a_moment(seed)
        try:
            writer.commit()
        except (AlreadyExistsError, LostClaimError):
            writer.abort()


def _wait_a_moment(seed: int) -> None:
    """About as long as a commit takes, so that the two meet anywhere within it."""
    time.sleep(random.Random(seed).random() * 0.04)


def _take_over_and_commit(url: Path, seed: int, barrier: Any) -> None:
    barrier.wait()
    _wait_a_moment(seed + 1)
    # No time is enough for this one to think that the other is dead.
    with Claims(Root(str(url)), stale_after=0.0) as claims:
        claim = claims.acquire(shard_name(0))
        if claim is None:
            return
        manifest = small_manifest()
        writer = ShardWriter(Root(str(url)), manifest, 0, claim)
        writer.append(random_sample("s0", 40, seed + 1, manifest), 0)
        try:
            writer.commit()
        except (AlreadyExistsError, LostClaimError):
            writer.abort()


def test_a_writer_that_was_taken_over_commits_nothing(url: Path) -> None:
    root = Root(str(url))
    with Claims(root) as claims:
        late = _shard_writer(url, 1, claims)
        root.create(f"claims/{shard_name(0)}.1", [b"{}"])
        with pytest.raises(LostClaimError, match="taken over"):
            late.commit()
    assert layout.committed_shards(root) == []
    assert not root.exists(layout.shard_object(layout.INPUT_IDS, 0))
    root.delete(f"claims/{shard_name(0)}.1")
    with Claims(root) as claims:
        _shard_writer(url, 2, claims).commit()
    assert _is_sample(url, 2)


def test_a_part_of_replaced_objects_is_taken_back(
    url: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer thought dead commits its part just after its objects were replaced by ours."""
    root = Root(str(url))
    with Claims(root) as claims:
        _shard_writer(url, 1, claims).commit()
    part = root.read(layout.index_part(0))
    root.delete(layout.index_part(0))
    create = Root.create

    def late(self: Root, name: str, parts: list[Buffer]) -> str:
        if name == layout.index_part(0) and not self.exists(name):
            monkeypatch.undo()
            create(self, name, [part])
        return create(self, name, parts)

    with Claims(root) as claims:
        ours = _shard_writer(url, 2, claims)
        monkeypatch.setattr(Root, "create", late)
        ours.commit()
    assert _is_sample(url, 2)


def test_memory_does_not_grow_with_the_shard(url: Path) -> None:
    """What was appended is in the temporary file, not in the writer."""
    with Claims(Root(str(url))) as claims:
        writer = _shard_writer(url, 1, claims)
        files = [path for path in (url / ".tmp").rglob("*") if path.is_file()]
        states = 40 * small_manifest().row_bytes * len(small_manifest().layers)
        assert sum(path.stat().st_size for path in files) >= states
        held = [value for value in vars(writer).values() if isinstance(value, np.ndarray)]
        assert held == []
        writer.abort()
    assert [path for path in (url / ".tmp").rglob("*") if path.is_file()] == []
