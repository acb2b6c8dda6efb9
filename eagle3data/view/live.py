"""Live: how far an extraction is, read from the data set's root alone, as `status` reads it."""

from __future__ import annotations

import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from eagle3data.readers import progress_words as words
from eagle3data.readers.progress import Progress, Watch
from eagle3data.view import charts
from eagle3data.view.pages import Pages

_SECONDS, _SECONDS_WHEN_COMPLETE = 2, 30
"""Between two looks of a page."""


def page(pages: Pages, request: Request) -> Response:
    """`/live`."""
    return pages.show(request, "live.html", part=_part(pages))


def part(pages: Pages, _: Request) -> Response:
    """`/live/part`: what changes, which the page asks for again and again."""
    return HTMLResponse(_part(pages))


def _part(pages: Pages) -> str:
    progress, watch = pages.opened.progress()
    pairs = dict(words.pairs(progress))
    return pages.render(
        "live_part.html",
        facts=words.facts(progress),
        share=min(1.0, progress.committed.tokens / max(progress.planned.tokens, 1)),
        pairs=[(name, pairs[name]) for name in ("samples", "speed", "left", "disk")],
        claims=[(words.claim_words(one), bool(words.why_stale(one))) for one in progress.claims],
        failures=progress.failures[::-1],
        heading=_heading(progress),
        again=_SECONDS_WHEN_COMPLETE if progress.is_complete else _SECONDS,
        chart=_chart(watch),
    )


def _heading(progress: Progress) -> str:
    if progress.is_complete:
        return "All is committed"
    if any(not words.why_stale(claim) for claim in progress.claims):
        return "Extraction runs"
    return "Nobody works on it now"


def _chart(watch: Watch) -> charts.Spec | None:
    """Committed tokens over time."""
    timed = sorted(
        (commit.written_at, commit.tokens)
        for commit in watch.commits.values()
        if commit.written_at is not None
    )
    if len(timed) < 2:
        return None
    tokens, total = [], 0
    for _, count in timed:
        total += count
        tokens.append(total)
    caption = f"from {_time(timed[0][0])} to {_time(timed[-1][0])}"
    names: list[Any] = [_time(when) for when, _ in timed]
    series = [charts.Series("committed tokens", tokens)]
    return charts.lines(
        "Committed tokens", caption, names, series, x_title="by commit", y_title="tokens"
    )


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%d %b %H:%M:%S")
