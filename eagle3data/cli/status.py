"""`eagle3data status`: how far an extraction is, who works on it, and what failed."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from eagle3data.cli import options as o
from eagle3data.cli.console import (
    out,
    print_json,
    print_json_line,
    print_lines,
    print_pairs,
    visible,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eagle3data.readers.progress import Progress

    Show = Callable[[Progress], None]

_MOST_IN_A_LINE = 3


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
    from eagle3data.readers import progress_words as words

    if not follow:
        yield lambda progress: print_json(words.facts(progress)) if json else _print(progress)
    elif json or not out.is_terminal:
        yield _changes(json=json)
    else:
        from rich.live import Live

        with Live(console=out, auto_refresh=False) as live:
            yield lambda progress: live.update(_picture(progress), refresh=True)


def _changes(*, json: bool) -> Show:
    from eagle3data.readers import progress_words as words

    told: list[object] = []
    known: set[str] = set()

    def show(progress: Progress) -> None:
        if _what_changes(progress) == told:
            return
        told[:] = _what_changes(progress)
        if json:
            print_json_line(words.facts(progress))
        else:
            reasons = {failure["reason"] for failure in progress.failures}
            out.print(visible(_line(progress, sorted(reasons - known))), markup=False)
            known.update(reasons)

    return show


def _what_changes(progress: Progress) -> list[object]:
    """All but what the passing of time changes."""
    from eagle3data.readers import progress_words as words

    claims = sorted((claim.state.object, words.standing(claim)) for claim in progress.claims)
    return [progress.planned, progress.committed, len(progress.failures), claims]


def _picture(progress: Progress) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    from eagle3data.readers import progress_words as words

    pairs = Table.grid(padding=(0, 2))
    for name, value in _pairs(progress):
        pairs.add_row(Text(name, style="bold"), value)
    bar = ProgressBar(total=max(progress.planned.tokens, 1), completed=progress.committed.tokens)
    details = (Padding(Text(visible(line)), (0, 0, 0, 2)) for line in words.details(progress))
    # A bar alone ends no line, so what follows would be lost behind it.
    return Group(Text(progress.url), Padding(bar, 0), pairs, *details)


def _print(progress: Progress) -> None:
    from eagle3data.readers import progress_words as words

    print_pairs(_pairs(progress))
    print_lines(words.details(progress), indent="  ")


def _pairs(progress: Progress) -> list[tuple[str, Text]]:
    """Everything that matters, by name; what somebody has to see to in colour."""
    from eagle3data.readers import progress_words as words

    styles = {
        "failed": "bold red" if progress.failures else "",
        "disk": "" if words.has_room(progress) else "bold red",
        "claims": "yellow" if any(map(words.why_stale, progress.claims)) else "",
    }
    return [
        (name, Text(value, style=styles.get(name, ""))) for name, value in words.pairs(progress)
    ]


def _line(progress: Progress, new_failures: list[str]) -> str:
    """Everything that matters, on one line that can be kept in a log."""
    from eagle3data.readers import progress_words as words

    committed, planned = progress.committed, progress.planned
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    parts = [
        f"{now} shards {committed.shards:,} of {planned.shards:,}",
        f"tokens {committed.tokens:,} of {planned.tokens:,}",
        words.speed_words(progress),
        f"left {words.left_words(progress)}",
        f"disk {words.disk_words(progress)}",
        f"claims {len(progress.claims):,}",
    ]
    parts += [words.claim_words(claim) for claim in progress.claims if words.why_stale(claim)]
    if progress.failures:
        parts.append(f"failed {len(progress.failures):,}")
    parts += new_failures[:_MOST_IN_A_LINE]
    return "; ".join(parts)
