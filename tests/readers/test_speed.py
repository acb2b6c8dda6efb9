"""The speed of an extraction, from when its shards were committed and by whom."""

from __future__ import annotations

import pytest

from eagle3data.readers.speed import Commit, Speed, speed_of

TOKENS = 6000


def commits(times: list[float], writers: int = 1) -> list[Commit]:
    return [
        Commit(
            shard=shard,
            samples=1,
            tokens=TOKENS,
            bytes=1,
            written_at=time,
            writer=f"host {shard % writers}",
        )
        for shard, time in enumerate(times)
    ]


def test_one_worker_at_an_even_pace() -> None:
    times = [60.0 * number for number in range(1, 41)]
    speed = speed_of(commits(times), clock=times[-1] + 10)
    assert speed.average == pytest.approx(TOKENS / 60)
    assert speed.now == pytest.approx(TOKENS / 60)
    assert speed.last_commit == times[-1]
    assert speed_of(list(reversed(commits(times))), clock=times[-1] + 10) == speed


def test_workers_that_began_together() -> None:
    times = [60.0 * wave for wave in range(1, 9) for _ in range(8)]
    speed = speed_of(commits(times, writers=8), clock=times[-1])
    assert speed.average == pytest.approx(8 * TOKENS / 60)
    assert speed.now == pytest.approx(8 * TOKENS / 60, rel=0.3)


def test_a_pause_is_no_running_time() -> None:
    first = [60.0 * number for number in range(10)]
    second = [86_400.0 + time for time in first]
    assert speed_of(commits(first + second), 86_950.0).average == pytest.approx(TOKENS / 60)
    slow = [500.0 * number for number in range(5)]
    assert speed_of(commits(slow), 2000.0).average == pytest.approx(TOKENS / 500)


def test_now_is_not_the_average() -> None:
    slow = [60.0 * number for number in range(100)]
    fast = [slow[-1] + 2.0 * number for number in range(1, 61)]
    speed = speed_of(commits(slow + fast), clock=fast[-1])
    assert speed.now == pytest.approx(TOKENS / 2)
    assert speed.average is not None
    assert speed.average < TOKENS / 30


def test_silence_is_seen() -> None:
    times = [10.0 * number for number in range(10)]
    assert speed_of(commits(times), times[-1] + 59).now == pytest.approx(TOKENS / 10)
    silent = speed_of(commits(times), times[-1] + 61)
    assert silent.now == 0.0
    assert silent.average == pytest.approx(TOKENS / 10)
    slow = [300.0 * number for number in range(10)]
    assert speed_of(commits(slow), slow[-1] + 1000).now == pytest.approx(TOKENS / 300)


def test_too_little_to_know() -> None:
    assert speed_of([], 0.0) == Speed()
    assert speed_of(commits([5.0]), 6.0) == Speed(last_commit=5.0)
    assert speed_of(commits([5.0, 5.0]), 6.0) == Speed(last_commit=5.0)
    assert speed_of(commits([5.0, 9.0], writers=2), 9.0).average is None
