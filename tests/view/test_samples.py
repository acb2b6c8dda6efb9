"""Samples: search, order and pages are those of the index."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

from eagle3data import open_dataset
from eagle3data.validation.findings import Finding, Level, Report
from tests.support import random_sample, random_samples, small_manifest, write_set
from tests.view.conftest import Client, Open
from tests.view.serving import facts
from tests.view.test_overview import HOSTILE


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """120 samples `s0`, ...; every fourth of split `eval`."""
    manifest = small_manifest()
    return write_set(
        tmp_path_factory.mktemp("many") / "set", random_samples(120, manifest), manifest
    )


def shown(html: str) -> list[str]:
    return [unescape(name) for name in re.findall(r"<code>(.*?)</code></a>", html)]


def test_order_and_pages_are_those_of_the_index(many: str, client: Client) -> None:
    index = open_dataset(many).index
    names = [str(name) for name in index["sample_id"].to_pylist()]
    lengths = index["length"].to_numpy().tolist()
    visitor = client(many)
    first = visitor.get("/samples").text
    assert shown(first) == names[:50]
    assert (facts(first)["found"], facts(first)["tokens"]) == ("120", str(sum(lengths)))
    assert shown(visitor.get("/samples?page=3").text) == names[100:]
    longest = sorted(range(120), key=lambda at: -lengths[at])
    page = visitor.get("/samples?sort=length&order=down&page=2").text
    assert shown(page) == [names[at] for at in longest[50:100]]
    kept = index["n_loss_tokens"].to_numpy().tolist()
    least = sorted(range(120), key=lambda at: kept[at] / lengths[at])
    assert shown(visitor.get("/samples?sort=loss").text) == [names[at] for at in least[:50]]


def test_search_and_filters(many: str, client: Client) -> None:
    dataset = open_dataset(many)
    names = [str(name) for name in dataset.index["sample_id"].to_pylist()]
    visitor = client(many)
    assert shown(visitor.get("/samples?q=S11").text) == [name for name in names if "s11" in name]
    assert facts(visitor.get("/samples?split=eval").text)["found"] == "30"
    of_two = [name for at, name in enumerate(names) if dataset.shard_of(at) == 2]
    assert shown(visitor.get("/samples?shard=2").text) == of_two
    assert "No sample is like that" in visitor.get("/samples?q=(.*)").text


def test_findings_are_shown_and_asked_for(many: str, client: Client) -> None:
    report = Report(url=many, level=Level.FULL)
    report.add(Finding(kind="nonfinite", detail="NaN", sample_id=f"s{at}") for at in (7, 3))
    report.add([Finding(kind="shifted", detail="by one", sample_id="s7")])
    visitor = client(many, report=report)
    assert shown(visitor.get("/samples?finding=shifted").text) == ["s7"]
    assert shown(visitor.get("/samples?finding=any").text) == ["s3", "s7"]
    assert facts(visitor.get("/samples?finding=none").text)["found"] == "118"
    assert shown(visitor.get("/samples?sort=findings&order=down").text)[:2] == ["s7", "s3"]


@pytest.mark.parametrize(
    "query",
    ["sort=../source", "order=../down", "page=../1", "page=9", "shard=../../etc/passwd",
     "split=../train", "finding=../x", "page=1e9", "shard=0x2"],
)  # fmt: skip
def test_odd_parameters_are_no_page(many: str, client: Client, query: str) -> None:
    page = client(many).get(f"/samples?{query}")
    assert page.status_code == 404
    assert "There is no such page" in page.text


def test_a_search_for_a_path_finds_none(many: str, client: Client) -> None:
    page = client(many).get("/samples?q=../../etc/passwd")
    assert (page.status_code, facts(page.text)["found"]) == (200, "0")


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A set whose ids, sources, splits and extras are markup."""
    manifest = small_manifest()
    sample = random_sample(
        HOSTILE, 30, 1, manifest, source=HOSTILE, split=HOSTILE, source_extra={HOSTILE: HOSTILE}
    )
    return write_set(tmp_path / "hostile", [sample], manifest)


def test_markup_in_names_is_text(hostile: str, client: Client) -> None:
    report = Report(url=hostile, level=Level.FULL)
    report.add([Finding(kind=HOSTILE, detail=HOSTILE, sample_id=HOSTILE)])
    visitor = client(hostile, report=report)
    queries = [f"{name}={quote(HOSTILE)}" for name in ("q", "split", "finding", "sort")]
    for query in ("", *queries):
        page = visitor.get(f"/samples?{query}").text
        assert "alert(1)" in page
        assert "<script>alert" not in page
        assert "<img src=http" not in page


def test_markup_in_names_runs_in_no_browser(hostile: str, opened: Open) -> None:
    visit = opened(hostile, "/samples")
    assert visit.text("tbody .id").strip() == HOSTILE
    assert visit.count("main script, main img") == 0


@pytest.mark.parametrize("width", [390, 1600])
def test_in_a_browser(states: str, opened: Open, width: int) -> None:
    visit = opened(states, "/samples", width=width)
    dataset = open_dataset(states)
    assert visit.fact("found") == str(len(dataset))
    assert visit.fact("tokens") == str(dataset.tokens)
    assert visit.fits()
    visit.do(lambda page: page.get_by_role("link", name="tokens").click())
    longest = int(dataset.index["length"].to_numpy().max())
    assert visit.text("tbody tr td:nth-child(3)") == f"{longest:,}"
    visit.do(lambda page: page.locator("input[type=search]").fill("nobody"))
    visit.do(lambda page: page.keyboard.press("Enter"))
    visit.wait_for("#fact-found[value='0']")
    assert visit.fits()
