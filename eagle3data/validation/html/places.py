"""Where findings lie: one strip a kind, along the shards and their tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from eagle3data.validation.findings import Finding
from eagle3data.validation.html.elements import Markup, el
from eagle3data.validation.overview import Overview

_BINS = 250
"""A strip tells so many places apart, whatever the set's size."""
_FAINTEST = 0.35
_MOST_BORDERS = 64

Span = tuple[float, float]


def places_figure(grouped: dict[str, list[Finding]], overview: Overview) -> Markup | None:
    """The strips of all kinds; None where no finding has a place.

    Text is the page's, beside the drawings, so that it stays readable on a narrow screen.
    """
    end = max(overview.end, overview.shards * overview.shard_tokens, 1)
    rows = [_strip(kind, findings, overview, end) for kind, findings in grouped.items()]
    if not rows:
        return None
    return el(
        "figure",
        *rows,
        el("div", el("span", "token 0"), el("span", f"token {end:,}"), class_="ends"),
        class_="strips",
    )


def _strip(kind: str, findings: Sequence[Finding], overview: Overview, end: int) -> Markup:
    spans = [_span(finding, overview) for finding in findings]
    placed = [span for span in spans if span is not None]
    whole = len(placed) < len(spans)
    boxes = [_box(0, _BINS, "everywhere")] if whole else []
    boxes += _borders(overview, end)
    boxes += _marks(_counts(placed, end))
    shards = sorted({finding.shard for finding in findings if finding.shard is not None})
    said = ["the whole set"] if whole else []
    if shards:
        said.append(
            f"shard {shards[0]}"
            if len(shards) == 1
            else f"{len(shards):,} shards from {shards[0]} to {shards[-1]}"
        )
    drawing = el(
        "svg",
        *boxes,
        viewBox=f"0 0 {_BINS} 20",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"Where {kind} lies: {', '.join(said)}.",
    )
    return el(
        "div",
        el("span", el("code", kind), " ", el("span", ", ".join(said), class_="quiet")),
        drawing,
        class_="strip",
    )


def _span(finding: Finding, overview: Overview) -> Span | None:
    """First and past-the-last token on the axis; None where it concerns the whole set."""
    place = overview.places.get(finding.sample_id or "")
    if place is not None:
        if finding.token_range is not None:
            first = place[0] + finding.token_range[0]
            return first, place[0] + finding.token_range[1]
        return place[0], place[1]
    if finding.shard is not None:
        return finding.shard * overview.shard_tokens, (finding.shard + 1) * overview.shard_tokens
    return None


def _counts(spans: Iterable[Span], end: int) -> list[int]:
    """How many findings touch each bin."""
    counts = [0] * _BINS
    for left, right in spans:
        first = min(int(left * _BINS / end), _BINS - 1)
        last = min(math.ceil(right * _BINS / end), _BINS)
        for number in range(first, max(last, first + 1)):
            counts[number] += 1
    return counts


def _marks(counts: Sequence[int]) -> list[Markup]:
    """Boxes, the more findings the stronger; equal neighbours are one box."""
    most = max(counts, default=0)
    boxes, at = [], 0
    for count, run in itertools.groupby(counts):
        width = len(list(run))
        if count:
            strength = _FAINTEST + (1 - _FAINTEST) * math.log1p(count) / math.log1p(most)
            boxes.append(_box(at, width, "mark", opacity=round(strength, 2)))
        at += width
    return boxes


def _borders(overview: Overview, end: int) -> list[Markup]:
    if overview.shards > _MOST_BORDERS:
        return []
    return [
        _box(shard * overview.shard_tokens * _BINS / end, 0.25, "border")
        for shard in range(1, overview.shards)
    ]


def _box(x: float, width: float, class_: str, opacity: float | None = None) -> Markup:
    return el(
        "rect",
        x=float(x),
        y=0,
        width=float(width),
        height=20,
        class_=class_,
        fill_opacity=opacity,
    )
