"""How fast an extraction is or was, from when its shards were committed and by whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PAUSE_SECONDS = 600.0
"""Longer without a commit, and nobody was working: the run had stopped."""
_NOW_SECONDS = 60.0
_NOW_COMMITS = 20
_WAVES = 4
"""Workers that began together commit together: so many rounds make a rate."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One committed shard.

    Attributes:
        shard: its number.
        samples: in it.
        tokens: of these.
        bytes: of its objects.
        objects: how many those are.
        written_at: seconds since 1970, by the writer's clock; None where the part doesn't say.
        writer: host and process that committed it.
    """

    shard: int
    samples: int
    tokens: int
    bytes: int
    written_at: float | None
    writer: str
    objects: int = 0


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tokens a second, over all workers; None where too little is committed to know.

    Attributes:
        average: of all the time that anybody worked.
        now: of the last commits; 0 when there has been none for long.
        last_commit: when that was, in seconds since 1970.
    """

    average: float | None = None
    now: float | None = None
    last_commit: float | None = None


def speed_of(commits: Sequence[Commit], clock: float) -> Speed:
    """The speed of an extraction.

    Args:
        commits: in any order.
        clock: seconds since 1970.
    """
    timed = [commit for commit in commits if commit.written_at is not None]
    if not timed:
        return Speed()
    stretches = list(_stretches(sorted(timed, key=_time)))
    return Speed(
        average=_average(stretches),
        now=_now(stretches[-1], clock),
        last_commit=_time(stretches[-1][-1]),
    )


def _time(commit: Commit) -> float:
    return commit.written_at or 0.0


def _stretches(commits: list[Commit]) -> Iterator[list[Commit]]:
    """Commits in order, parted where there was a pause."""
    begin = 0
    for at in range(1, len(commits)):
        if _time(commits[at]) - _time(commits[at - 1]) > PAUSE_SECONDS:
            yield commits[begin:at]
            begin = at
    yield commits[begin:]


def _average(stretches: list[list[Commit]]) -> float | None:
    """Tokens over time, both from each stretch's first commit of every worker on.

    When those were begun is not known, so neither they nor the time until then count.
    """
    tokens, seconds = 0, 0.0
    for stretch in stretches:
        first = _workers(stretch)
        tokens += sum(commit.tokens for commit in stretch[first:])
        seconds += _time(stretch[-1]) - _time(stretch[min(first, len(stretch)) - 1])
    return tokens / seconds if tokens and seconds > 0 else None


def _now(stretch: list[Commit], clock: float) -> float | None:
    last = _time(stretch[-1])
    recent = sum(_time(commit) >= last - _NOW_SECONDS for commit in stretch)
    window = stretch[-max(recent, _NOW_COMMITS, _WAVES * _workers(stretch)) :]
    seconds = last - _time(window[0])
    if seconds <= 0:
        return None
    usual = seconds / (len(window) - 1)
    if clock - last > max(_NOW_SECONDS, _WAVES * usual):
        return 0.0
    return sum(commit.tokens for commit in window[1:]) / seconds


def _workers(stretch: list[Commit]) -> int:
    return len({commit.writer for commit in stretch})
