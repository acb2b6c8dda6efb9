"""The whole page: the verdict, what was checked, what was found, and the plots."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from eagle3data.schema.words import size
from eagle3data.validation.findings import Level, Report, Verdict
from eagle3data.validation.html.charts import (
    identity_figure,
    lengths_figure,
    next_token_figure,
    rms_figure,
    witness_figure,
)
from eagle3data.validation.html.elements import Markup, document, el, style_sheet
from eagle3data.validation.html.findings_section import kind_card
from eagle3data.validation.html.places import places_figure
from eagle3data.validation.html.style import STYLE
from eagle3data.validation.summary import by_kind, in_a_sentence

_SIGN = {Verdict.CLEAN: "\u2713", Verdict.FAULTY: "\u2717", Verdict.UNDETERMINED: "?"}
_NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"
"""The page asks nobody for anything, and runs nothing, whatever is in a sample's id."""

_DEPTHS = (
    (
        "Structure",
        "manifest, plan, index and the sizes of objects",
        "what is missing, doubled, cut short or contradicts itself",
        lambda _: True,
    ),
    (
        "Bytes",
        "every checksum, every object against its commit",
        "that states are to the bit those that were written",
        lambda level: level.reads_contents,
    ),
    (
        "Meaning",
        "states against their tokens and the target's head",
        "that states belong to their tokens and layers, as far as it was sampled",
        lambda level: level.probes_meaning,
    ),
)


def report_page(report: Report) -> str:
    """A self-contained HTML page."""
    title = f"{report.verdict.value}: {report.url}"
    return document(
        [
            el("meta", charset="utf-8"),
            el("meta", http_equiv="Content-Security-Policy", content=_NOTHING_ELSE),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("title", title),
            style_sheet(STYLE),
        ],
        [el("main", *report_sections(report), _footer(report))],
    )


def report_sections(report: Report) -> Iterator[Markup]:
    """What the page says, for pages with a frame of their own; `STYLE` gives it its looks."""
    yield _verdict(report)
    yield from _findings(report)
    yield from _undecided(report)
    yield from _checked(report)
    yield from _plots(report)


def _footer(report: Report) -> Markup:
    return el(
        "footer",
        f"Written by eagle3data {version('eagle3data')}: eagle3data validate {report.url} "
        f"--level {report.level.value} --html FILE",
    )


def _verdict(report: Report) -> Markup:
    checked, overview = report.checked, report.overview
    facts = [
        ("level", report.level.value),
        ("samples", f"{checked.samples:,}"),
        ("tokens", f"{checked.tokens:,}"),
        ("read", size(checked.bytes)),
    ]
    if report.hidden:
        facts.append(("hidden by tombstones", f"{report.hidden:,}"))
    if overview is not None:
        facts += [
            ("shards", f"{overview.shards:,}"),
            ("layers", ", ".join(map(str, overview.layers))),
            ("stored as", f"{overview.dtype}, codec {overview.codec}"),
            ("target", overview.target),
        ]
    return el(
        "section",
        el("h1", report.url),
        el("p", f"{_SIGN[report.verdict]} {report.verdict.value.capitalize()}", class_="said"),
        el("p", in_a_sentence(report)),
        el(
            "dl",
            *(el("div", el("dt", name), el("dd", value)) for name, value in facts),
            class_="facts",
        ),
        class_=f"card verdict {report.verdict.value}",
    )


def _findings(report: Report) -> Iterator[Markup]:
    if not report.findings:
        return
    grouped = by_kind(report.findings)
    yield el("h2", "Findings")
    if report.overview is not None:
        strips = places_figure(grouped, report.overview)
        if strips is not None:
            yield el("p", "Where they lie, along the tokens of all shards.", class_="quiet")
            yield strips
    for kind, findings in grouped.items():
        yield kind_card(kind, findings)


def _undecided(report: Report) -> Iterator[Markup]:
    if report.undecided:
        yield el("h2", "What stays open")
        yield _list(report.undecided, "card verdict undetermined")


def _checked(report: Report) -> Iterator[Markup]:
    yield el("h2", "What was checked")
    rows = [
        el(
            "tr",
            el("td", el("strong", name)),
            el("td", "\u2713 yes" if looked(report.level) else "\u2013 no"),
            el("td", what),
            el("td", proves),
        )
        for name, what, proves, looked in _DEPTHS
    ]
    names = ("Depth", "Done", "What it reads", "What it shows")
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in names)))
    table = el("div", el("table", head, el("tbody", *rows)), class_="scroll")
    yield el("div", table, class_="card")
    if report.confidence:
        yield _list(report.confidence, "card")


def _list(sentences: list[str], class_: str) -> Markup:
    return el("div", el("ul", *(el("li", sentence) for sentence in sentences)), class_=class_)


def _plots(report: Report) -> Iterator[Markup]:
    measured, overview = report.measured, report.overview
    layers = measured.layers if measured is not None else []
    final = overview.final_layer if overview is not None else None
    yield from _gallery(
        "Token identity by shift",
        "Which token a state names, by its distance from the row's own. In a right set 0 stands "
        "out at every layer; the dashed line is what a stranger's rows would reach.",
        [identity_figure(one) for one in layers],
    )
    yield from _gallery(
        "Next token by shift",
        "Which token the target's head foretells from a state. In a right set +1 stands out at "
        "the final layer, and less the further below it a layer lies.",
        [
            next_token_figure(one, one.next_token, final=one.layer == final)
            for one in layers
            if one.next_token is not None
        ],
    )
    witness = measured.witness if measured is not None else None
    yield from _gallery(
        "Witness",
        "Each sample's last row through the target's head, against the engine's own next token.",
        [witness_figure(witness) if witness is not None else None],
    )
    yield from _gallery(
        "Magnitude by position",
        "Root mean square of single rows along the samples: a break or a jump in the middle "
        "would be a fault that begins there. The first rows are often far larger.",
        [rms_figure(one.layer, one.rms) for one in layers],
    )
    yield from _gallery(
        "Lengths", None, [lengths_figure(overview) if overview is not None else None]
    )
    if not layers and report.level in (Level.QUICK, Level.FULL):
        yield el(
            "p",
            "Plots of what states mean need --level semantic or all.",
            class_="quiet",
        )


def _gallery(heading: str, sentence: str | None, figures: list[Markup | None]) -> Iterator[Markup]:
    shown = [figure for figure in figures if figure is not None]
    if not shown:
        return
    yield el("h2", heading)
    if sentence:
        yield el("p", sentence, class_="quiet")
    yield el("div", *shown, class_="grid")
