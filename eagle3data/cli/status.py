"""`eagle3data status`: how far an extraction is, who works on it, and what failed."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import (
    duration,
    hidden,
    out,
    print_json,
    print_json_line,
    print_pairs,
    rate,
    size,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eagle3data.readers.progress import Progress
    from eagle3data.storage.claim_watch import SeenClaim

    Show = Callable[[Progress], None]

_MOST_FAILURES = 10
_MOST_IN_A_LINE = 3
_STANDING = {"live": "alive", "unknown": "on another machine"}


def status(
    url: o.Url,
    follow: Annotated[
        bool, typer.Option("--follow", help="Look again and again, until all is committed.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --follow: between two looks.")
    ] = 5.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; with --follow one a line.")
    ] = False,
) -> None:
    """How much is committed of what is planned, how fast, who works on it, and what failed.

    All of it is read from the data set, so it can be asked on any machine that sees the folder or
    the bucket. --follow ends when all is committed; where it isn't shown on a terminal it prints
    a line whenever something has changed.

    Example: eagle3data status s3://bucket/states --follow
    """
    from eagle3data.readers.progress import Watch
    from eagle3data.storage.root import Root

    watch = Watch(Root(url))
    with _shown(follow=follow, json=json) as show:
        while True:
            progress = watch.look()
            show(progress)
            if progress.is_complete or not follow:
                break
            time.sleep(interval)
    if progress.unreadable:
        raise typer.Exit(1)


@contextmanager
def _shown(*, follow: bool, json: bool) -> Iterator[Show]:
    """What shows a look; one after another is redrawn on a terminal, else a line a change."""
    if not follow:
        yield lambda progress: print_json(_as_json(progress)) if json else _print(progress)
    elif json or not out.is_terminal:
        yield _changes(json=json)
    else:
        from rich.live import Live

        with Live(console=out, auto_refresh=False) as live:
            yield lambda progress: live.update(_picture(progress), refresh=True)


def _changes(*, json: bool) -> Show:
    told: list[object] = []
    known: set[str] = set()

    def show(progress: Progress) -> None:
        if _what_changes(progress) == told:
            return
        told[:] = _what_changes(progress)
        if json:
            print_json_line(_as_json(progress))
        else:
            reasons = {failure["reason"] for failure in progress.failures}
            out.print(_line(progress, sorted(reasons - known)), markup=False)
            known.update(reasons)

    return show


def _what_changes(progress: Progress) -> list[object]:
    """All but what the passing of time changes."""
    claims = sorted((claim.state.object, _state(claim)) for claim in progress.claims)
    return [progress.planned, progress.committed, len(progress.failures), claims]


def _picture(progress: Progress) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    pairs = Table.grid(padding=(0, 2))
    for name, value in _pairs(progress):
        pairs.add_row(Text(name, style="bold"), Text(value))
    bar = ProgressBar(total=max(progress.planned.tokens, 1), completed=progress.committed.tokens)
    return Group(Text(progress.url), bar, pairs, *map(Text, _details(progress)))


def _print(progress: Progress) -> None:
    print_pairs(_pairs(progress))
    for line in _details(progress):
        out.print(line, markup=False)


def _pairs(progress: Progress) -> list[tuple[str, str]]:
    committed, planned = progress.committed, progress.planned
    return [
        ("shards", f"{committed.shards:,} of {planned.shards:,} committed"),
        ("samples", f"{committed.samples:,} committed" + hidden(progress.hidden)),
        ("tokens", f"{committed.tokens:,} of {planned.tokens:,}"),
        ("speed", _speed(progress)),
        ("left", _left(progress)),
        ("disk", _disk(progress)),
        ("failed", f"{len(progress.failures):,} samples"),
        ("claims", f"{len(progress.claims):,}"),
    ]


def _details(progress: Progress) -> list[str]:
    lines = [f"  {_claim_line(claim)}" for claim in progress.claims]
    lines += [
        f"  shard {shard}: its index part can't be read; `eagle3data repair` mends that"
        for shard in progress.unreadable
    ]
    failures = progress.failures[-_MOST_FAILURES:]
    lines += [f"  shard {failure['shard']}: {failure['reason']}" for failure in failures]
    if len(progress.failures) > len(failures):
        more = len(progress.failures) - len(failures)
        lines.append(f"  and {more:,} more failures; --json lists them all")
    return lines


def _line(progress: Progress, new_failures: list[str]) -> str:
    """Everything that matters, on one line that can be kept in a log."""
    committed, planned = progress.committed, progress.planned
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    parts = [
        f"{now} shards {committed.shards:,} of {planned.shards:,}",
        f"tokens {committed.tokens:,} of {planned.tokens:,}",
        _speed(progress),
        f"left {_left(progress)}",
        f"disk {_disk(progress)}",
        f"claims {len(progress.claims):,}",
    ]
    parts += [_claim_line(claim) for claim in progress.claims if _stale(claim)]
    if progress.failures:
        parts.append(f"failed {len(progress.failures):,}")
    parts += new_failures[:_MOST_IN_A_LINE]
    return "; ".join(parts)


def _speed(progress: Progress) -> str:
    if not progress.committed.shards:
        return "no shard committed yet"
    speed = progress.speed
    average = "" if speed.average is None else f"{rate(speed.average)} tokens/s on average"
    if progress.is_complete:
        return average or "not known: too few commits"
    if speed.now == 0 and speed.last_commit is not None:
        now = f"nothing committed for {duration(max(0.0, time.time() - speed.last_commit))}"
    else:
        now = "" if speed.now is None else f"{rate(speed.now)} tokens/s now"
    return ", ".join(filter(None, [now, average])) or "not known yet"


def _left(progress: Progress) -> str:
    if progress.is_complete:
        return "nothing"
    if not progress.is_planned:
        return "not known: samples are planned as they come"
    if progress.seconds_left is None:
        return f"{progress.tokens_left:,} tokens"
    return f"{duration(progress.seconds_left)} for {progress.tokens_left:,} tokens"


def _disk(progress: Progress) -> str:
    if progress.free is None:
        return "an object store"
    free = f"{size(progress.free)} free"
    at_end = progress.free_at_end
    if at_end is None or progress.is_complete:
        return free
    return (
        f"{free}, {size(at_end)} at the end" if at_end > 0 else f"{free}: TOO LITTLE for the rest"
    )


def _claim_line(claim: SeenClaim) -> str:
    age = _age(claim)
    renewed = "" if age is None else f", renewed {duration(age)} ago"
    return f"{claim.state.name}: {_owner(claim)}{renewed}, {_state(claim)}"


def _owner(claim: SeenClaim) -> str:
    return str(claim.state.owner or "unreadable")


def _state(claim: SeenClaim) -> str:
    stale = _stale(claim)
    return f"stale: {stale}" if stale else _STANDING[claim.standing.value]


def _stale(claim: SeenClaim) -> str:
    """Why a claim is stale, or empty; its age compares two clocks, so that decides nothing."""
    from eagle3data.storage.claims import STALE_AFTER

    owner, age = claim.state.owner, _age(claim)
    if claim.standing.value == "abandoned":
        why = "its process has ended" if owner and owner.is_gone else "silent for too long"
        return f"{why}, the next worker takes it over"
    if claim.standing.value == "unknown" and age is not None and age > STALE_AFTER:
        return "on another machine and silent for long, unless a clock is wrong"
    return ""


def _age(claim: SeenClaim) -> float | None:
    try:
        then = datetime.datetime.fromisoformat(claim.state.renewed_at)
        return max(0.0, (datetime.datetime.now(datetime.UTC) - then).total_seconds())
    except (ValueError, TypeError):
        return None


def _as_json(progress: Progress) -> dict[str, Any]:
    planned, committed, speed = progress.planned, progress.committed, progress.speed
    return {
        "url": progress.url,
        "shards": {"planned": planned.shards, "committed": committed.shards},
        "samples": {"planned": planned.samples, "committed": committed.samples},
        "tokens": {"planned": planned.tokens, "committed": committed.tokens},
        "hidden": progress.hidden,
        "complete": progress.is_complete,
        "tokens_per_second": {"now": speed.now, "average": speed.average},
        "last_commit": speed.last_commit,
        "seconds_left": progress.seconds_left,
        "bytes": progress.bytes,
        "free_bytes": progress.free,
        "free_bytes_at_end": progress.free_at_end,
        "claims": [
            {
                "name": claim.state.name,
                "owner": _owner(claim),
                "age": _age(claim),
                "state": _state(claim),
                "stale": bool(_stale(claim)),
            }
            for claim in progress.claims
        ],
        "failures": progress.failures,
        "unreadable": progress.unreadable,
    }
