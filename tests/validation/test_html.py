"""The page of a report: complete, self-contained, harmless, and opened by a real browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from eagle3data.validation.findings import Checked, Finding, Level, Report, Severity
from eagle3data.validation.html.charts import identity_figure, lengths_figure, rms_figure
from eagle3data.validation.html.elements import Markup, el, with_code
from eagle3data.validation.html.page import report_page
from eagle3data.validation.html.scales import brief, scale
from eagle3data.validation.measured import (
    ByShift,
    LayerMeasured,
    Measured,
    RmsByPosition,
    Witnesses,
)
from eagle3data.validation.overview import Overview
from tests.browser import open_page

HOSTILE = "</code><script>alert('x')</script><img src=http://example.org/a.png onerror=alert(1)>"
VOID = {"meta", "br", "hr"}


def by_shift(best: int | None = 0) -> ByShift:
    return ByShift(shifts=[-1, 0, 1], shares=[0.25, 0.95, 0.125], best=best, tested=1000)


def layer(number: int, best: int | None = 0) -> LayerMeasured:
    rms = RmsByPosition(
        start=[0, 1, 3], stop=[1, 3, 9], low=[50, 1, 1], median=[60, 2, 2], high=[90, 3, 3]
    )
    return LayerMeasured(
        layer=number,
        identity=by_shift(best),
        identity_chance=0.04,
        next_token=by_shift(1),
        rms=rms,
    )


@pytest.fixture
def report() -> Report:
    """A faulty set whose names are hostile everywhere they can be."""
    made = Report(url=f"s3://{HOSTILE}/set", level=Level.ALL)
    made.checked = Checked(samples=3, tokens=1234, bytes=5_600_000)
    made.add(
        [
            Finding(
                kind="shifted",
                detail=f"its states are those of sample {HOSTILE}.",
                sample_id=HOSTILE,
                shard=1,
                layer=30,
                token_range=(3, 9),
                expected=f"as in `{HOSTILE}`",
                advice=f"Run `eagle3data repair {HOSTILE}`.",
                chance=1e-4,
            ),
            Finding(kind="object_missing", detail="gone", shard=2),
            Finding(kind="wrong_norm_state", detail="over the whole set"),
            Finding(kind=HOSTILE, detail="a kind nobody knows", severity=Severity.WARNING),
        ]
    )
    made.undecided = [f"a question about {HOSTILE}"]
    made.confidence = [f"a note on {HOSTILE}"]
    made.overview = Overview(
        target=HOSTILE,
        layers=[2, 30],
        final_layer=30,
        dtype="float16",
        codec="none",
        shards=3,
        shard_tokens=1024,
        end=2900,
        length_edges=[0, 8, 16],
        length_counts=[3, 4],
        places={HOSTILE: [1024, 1100]},
    )
    difference = [at / 1000 for at in range(101)]
    made.measured = Measured(
        layers=[layer(2), layer(30, best=1)],
        witness=Witnesses(samples=3, agreeing=2, difference=difference),
        probed=3,
    )
    return made


class Parsed(HTMLParser):
    """Elements by name, the text, and whether every element is closed where it was opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_names_from_the_set_are_text_and_nothing_else(report: Report) -> None:
    page = Parsed(report_page(report))
    assert not {"script", "img", "iframe", "object", "link", "base", "form"} & set(page.names)
    assert page.text.count("<script>alert('x')</script>") >= 8
    handlers = [entry for entry in page.attributes if entry[1].startswith("on")]
    assert handlers == []


def test_nothing_is_asked_of_anybody(report: Report) -> None:
    page = report_page(report)
    parsed = Parsed(page)
    sources = {"src", "href", "action", "data", "srcset", "background"}
    assert [entry for entry in parsed.attributes if entry[1] in sources] == []
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    policy = next(value for _, name, value in parsed.attributes if name == "content")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_page_says_what_the_report_says(report: Report) -> None:
    text = Parsed(report_page(report)).text
    for said in (
        "Faulty",
        "3 errors of 3 kinds in 1 sample.",
        "1 warning besides.",
        "tokens 3 to 8",
        "at most 1 clean set in 10,000 shows this",
        "proven",
        "1,234",
        "5.6 MB",
        "a question about",
        "a note on",
        "Layer 30 (final)",
        "token 3,072",
        "the whole set",
    ):
        assert said in text, said


def test_every_plot_has_a_text_alternative(report: Report) -> None:
    page = Parsed(report_page(report))
    labels = [value or "" for tag, name, value in page.attributes if name == "aria-label"]
    assert len(labels) == page.names.count("svg")
    assert page.names.count("svg") == 4 + 2 + 2 + 1 + 2 + 1
    assert any("shift over 1,000 rows" in said and "95.0%" in said for said in labels)
    assert any(said.startswith("Where shifted lies: shard 1") for said in labels)


def test_the_shift_that_stands_out_is_marked() -> None:
    assert identity_figure(layer(2)).count("bar good") == 1
    wrong = identity_figure(layer(2, best=1))
    assert wrong.count("bar bad") == 1
    assert "0 was expected" in wrong
    assert "no shift stands out" in identity_figure(layer(2, best=None))


def test_a_report_with_nothing_to_draw() -> None:
    text = Parsed(report_page(Report(url="x", level=Level.QUICK))).text
    assert "Clean" in text
    assert "need --level semantic" in text
    empty = Overview(
        target="m",
        layers=[2],
        final_layer=2,
        dtype="float16",
        codec="none",
        shards=0,
        shard_tokens=16,
        end=0,
    )
    assert lengths_figure(empty) is None
    assert rms_figure(2, RmsByPosition()) is None
    made = Report(url="x", level=Level.ALL, overview=empty, measured=Measured())
    made.add([Finding(kind="index_corrupt", detail="x")])
    assert "Faulty" in Parsed(report_page(made)).text


def test_many_findings_are_folded_and_counted(report: Report) -> None:
    report.add(
        Finding(kind="nonfinite", detail="NaN", sample_id=f"s{at}", shard=at % 3, layer=2)
        for at in range(3000)
    )
    page = report_page(report)
    assert len(page) < 300_000
    text = Parsed(page).text
    assert "192 more of 2,992" in text
    assert "And 2,800 more, which --json lists." in text


def test_many_places_are_told_apart_by_strength(report: Report) -> None:
    report.findings = []
    report.add(
        Finding(kind="nonfinite", detail="NaN", sample_id=f"s{at}", shard=0 if at else 2)
        for at in range(500)
    )
    page = Parsed(report_page(report))
    strengths = [value for _, name, value in page.attributes if name == "fill-opacity"]
    assert strengths[0] == "1"
    assert 0.3 < float(strengths[1] or 0) < 0.6
    assert len(strengths) == 2


def test_numbers_that_no_scale_expects() -> None:
    assert scale(5, 5, 0, 100)(5) == 0
    assert scale(1, 1, 0, 100, log=True)(1) == pytest.approx(50)
    assert scale(0, 10, 0, 100).ticks(5) == [0, 2, 4, 6, 8, 10]
    assert scale(1, 1000, 0, 100, log=True).ticks() == [1, 10, 100, 1000]
    assert scale(0, 10, 0, 100)(12) == 100
    assert [brief(value) for value in (0.25, 12, 1234, 2_500_000)] == [
        "0.25",
        "12",
        "1.23k",
        "2.5M",
    ]


def test_text_is_escaped_unless_it_is_markup() -> None:
    assert el("p", "a<b", el("b", "&"), title='"') == '<p title="&quot;">a&lt;b<b>&amp;</b></p>'
    assert el("p", Markup("<br>"), None) == "<p><br></p>"
    assert el("div", *with_code("run `a<b` now")) == "<div>run <code>a&lt;b</code> now</div>"
    assert with_code("a ` b") == ["a ` b"]


def test_a_real_browser_opens_it(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(report), encoding="utf-8")
    opened = open_page(file, tmp_path / "profile")
    assert opened.complaints == []
    page = Parsed(opened.dom)
    assert page.names.count("article") == 4
    assert page.names.count("svg") == 12
    assert not {"script", "img"} & set(page.names)
    assert "3 errors of 3 kinds" in page.text


def test_the_browser_would_complain(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    page = report_page(Report(url="x", level=Level.QUICK))
    file.write_text(page.replace("</main>", "<script>1</script></main>"), encoding="utf-8")
    assert open_page(file, tmp_path / "profile").complaints
