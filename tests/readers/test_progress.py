"""`Watch`: what a data set's folder or bucket says of its extraction, read once each."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from eagle3data.readers import progress as module
from eagle3data.readers.progress import Count, Watch
from eagle3data.storage import layout
from eagle3data.storage.claim_watch import Standing
from eagle3data.storage.claims import Claims
from eagle3data.storage.ledger import record_failure
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury
from eagle3data.writers.dataset_writer import DatasetWriter
from tests.planned import LENGTH, PlannedSet, at
from tests.support import random_sample, small_manifest


@pytest.fixture
def planned(tmp_path: Path) -> PlannedSet:
    return PlannedSet(str(tmp_path / "set"), 4)


def test_from_nothing_to_complete(planned: PlannedSet) -> None:
    watch = Watch(planned.root)
    seen = watch.look()
    assert seen.planned == Count(shards=4, samples=4, tokens=4 * LENGTH)
    assert seen.committed == Count()
    assert (seen.tokens_left, seen.seconds_left, seen.free_at_end) == (4 * LENGTH, None, None)
    for shard, second in ((0, 0), (2, 10), (1, 20)):
        planned.commit(shard, written_at=at(second))
    seen = watch.look()
    assert seen.committed == Count(shards=3, samples=3, tokens=3 * LENGTH)
    assert not seen.is_complete
    assert seen.speed.average == pytest.approx(LENGTH / 10)
    assert seen.speed.now == 0.0  # these times are long ago
    assert seen.seconds_left == pytest.approx(10)
    assert seen.bytes == sum(
        file.stat().st_size
        for file in Path(planned.root.path).glob("*/**/c/**/*")
        if file.is_file()
    )
    assert seen.free is not None
    assert seen.free_at_end == pytest.approx(seen.free - seen.bytes / 3, abs=1)
    planned.commit(3)
    seen = watch.look()
    assert seen.is_complete
    assert seen.seconds_left == 0.0


def test_each_part_is_read_once(planned: PlannedSet, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = Root.read

    def counted(root: Root, name: str) -> bytes:
        read.append(name)
        return plain(root, name)

    planned.commit(0)
    planned.commit(1)
    record_failure(planned.root, shard=1, sample_id="x", kind="nonfinite", reason="not finite")
    watch = Watch(planned.root)
    watch.look()
    monkeypatch.setattr(Root, "read", counted)
    watch.look()
    assert read == []
    planned.commit(3)
    read.clear()
    assert watch.look().committed.shards == 3
    assert read == [layout.index_part(3)]


def test_claims_and_their_standing(planned: PlannedSet, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = Watch(planned.root)

    def standings() -> list[Standing]:
        return [claim.standing for claim in watch.look().claims]

    planned.claim_of_the_dead(0)
    planned.claim_elsewhere(1)
    planned.claim_elsewhere(2)
    assert standings() == [Standing.ABANDONED, Standing.UNKNOWN, Standing.UNKNOWN]
    clock[0] += 15
    planned.claim_elsewhere(2, beat=1)
    assert standings() == [Standing.ABANDONED, Standing.UNKNOWN, Standing.LIVE]
    clock[0] += 50
    planned.claim_elsewhere(2, beat=2)
    assert standings() == [Standing.ABANDONED, Standing.ABANDONED, Standing.LIVE]


def test_failures_and_tombstones(planned: PlannedSet) -> None:
    watch = Watch(planned.root)
    planned.commit(0)
    assert watch.look().failures == []
    record_failure(planned.root, shard=1, sample_id="s1", kind="nonfinite", reason="not finite")
    bury(planned.root, shard=0, sample_id="s0", kind="all_zero", reason="all zero")
    bury(planned.root, shard=1, sample_id="s1", kind="all_zero", reason="never committed")
    seen = watch.look()
    assert [failure["reason"] for failure in seen.failures] == ["not finite"]
    assert seen.hidden == 1


def test_a_part_that_can_t_be_read_is_named(planned: PlannedSet) -> None:
    planned.commit(0)
    planned.commit(1)
    watch = Watch(planned.root)
    part = Path(planned.root.join(layout.index_part(1)))
    whole = part.read_bytes()
    part.write_bytes(whole[:100])
    seen = watch.look()
    assert seen.unreadable == [1]
    assert (seen.committed.shards, seen.committed.tokens) == (2, LENGTH)
    part.write_bytes(whole)
    assert watch.look().unreadable == []
    part.unlink()
    assert watch.look().committed.tokens == LENGTH


def test_parts_that_do_not_say_when(planned: PlannedSet) -> None:
    planned.commit(0, written_at=None)
    assert Watch(planned.root).look().speed.average is None


def test_a_writer_without_a_plan(tmp_path: Path) -> None:
    manifest = small_manifest()
    url = str(tmp_path / "set")
    with DatasetWriter.create(url, manifest) as writer:
        watch = Watch(Root(url))
        for number in range(3):
            writer.append(random_sample(f"s{number}", 100, number, manifest))
        seen = watch.look()
        assert (seen.committed.shards, seen.is_complete, seen.seconds_left) == (2, False, 0.0)
        assert not seen.is_planned
    assert watch.look().is_complete


def test_a_bucket(bucket: str) -> None:
    planned = PlannedSet(f"{bucket}/progress", 2)
    watch = Watch(planned.root)
    assert watch.look().committed == Count()
    planned.commit(1)
    seen = watch.look()
    assert (seen.committed.tokens, seen.free) == (LENGTH, None)


def test_a_claim_that_is_silent_is_taken_for_dead(
    planned: PlannedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Claims", partial(Claims, stale_after=0.0))
    planned.claim_elsewhere(0)
    (claim,) = Watch(planned.root).look().claims
    assert claim.standing is Standing.ABANDONED
