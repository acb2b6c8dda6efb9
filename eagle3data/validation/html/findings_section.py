"""Findings on the page: a card a kind, with what it means, where they lie and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3data.validation.findings import Finding
from eagle3data.validation.html.elements import Markup, el, with_code
from eagle3data.validation.kinds import meaning_of
from eagle3data.validation.summary import advice, extent, place, severity, sure

OPEN_ROWS = 8
"""Findings of a kind that are seen at once."""
MOST_ROWS = 200
"""More are for programs: they are in the JSON."""


def kind_card(kind: str, findings: Sequence[Finding]) -> Markup:
    """Everything about one kind."""
    worst = severity(findings).value
    meaning = meaning_of(kind)
    to_do = advice(findings)
    return el(
        "article",
        el(
            "header",
            el("h3", el("code", kind)),
            el("span", worst, class_="tag"),
            el("span", " · ".join(extent(findings)), class_="quiet"),
        ),
        el("p", meaning) if meaning else None,
        el("p", el("strong", "How sure: "), sure(findings) + "."),
        _table(findings[:OPEN_ROWS]),
        _more(findings),
        el(
            "div",
            el("strong", "What to do"),
            *(el("p", *with_code(sentence)) for sentence in to_do),
            class_="todo",
        )
        if to_do
        else None,
        class_=f"card kind {worst}",
    )


def _more(findings: Sequence[Finding]) -> Markup | None:
    rest = findings[OPEN_ROWS:MOST_ROWS]
    if not rest:
        return None
    left = len(findings) - OPEN_ROWS - len(rest)
    return el(
        "details",
        el("summary", f"{len(rest):,} more" + (f" of {left + len(rest):,}" if left else "")),
        _table(rest),
        el("p", f"And {left:,} more, which --json lists.", class_="quiet") if left else None,
    )


def _table(findings: Sequence[Finding]) -> Markup:
    expected = any(finding.expected for finding in findings)
    names = ["Where", "What was found", *(["What was expected"] if expected else [])]
    return el(
        "div",
        el(
            "table",
            el("thead", el("tr", *(el("th", name, scope="col") for name in names))),
            el("tbody", *(_row(finding, expected=expected) for finding in findings)),
        ),
        class_="scroll",
    )


def _row(finding: Finding, *, expected: bool) -> Markup:
    return el(
        "tr",
        el("td", *_where(finding)),
        el("td", *with_code(finding.detail), class_="long"),
        el("td", *with_code(finding.expected or "")) if expected else None,
    )


def _where(finding: Finding) -> list[Markup | str]:
    places = ", ".join(place(finding))
    if finding.sample_id is None:
        return [places or "the whole set"]
    return [el("code", finding.sample_id), *([el("br"), places] if places else [])]
