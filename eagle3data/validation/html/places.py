"""Where findings lie: one strip a kind, along the shards and their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eagle3data.validation.findings import Finding
from eagle3data.validation.html.elements import Markup, el
from eagle3data.validation.overview import Overview

_WIDTH = 1000
_LEAST = 3
"""Units of the strip: a mark is never narrower."""
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
    marks = _merged((a * _WIDTH / end, b * _WIDTH / end) for a, b in placed)
    boxes = [_box(0, _WIDTH, "everywhere")] if whole else []
    boxes += _borders(overview, end)
    boxes += [_box(left, right - left, "mark") for left, right in marks]
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
        viewBox=f"0 0 {_WIDTH} 20",
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


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Marks that can be seen, those that touch made one: thousands would be as many boxes."""
    found: list[Span] = []
    for left, right in sorted(spans):
        stop = max(right, left + _LEAST)
        if found and left <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((left, stop))
    return found


def _borders(overview: Overview, end: int) -> list[Markup]:
    if overview.shards > _MOST_BORDERS:
        return []
    return [
        _box(shard * overview.shard_tokens * _WIDTH / end, 1, "border")
        for shard in range(1, overview.shards)
    ]


def _box(x: float, width: float, class_: str) -> Markup:
    return el("rect", x=float(x), y=0, width=float(width), height=20, class_=class_)
