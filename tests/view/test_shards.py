"""Shards: their colours are what the index, the claims and the findings say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from eagle3data import open_dataset
from eagle3data.storage.tombstones import bury
from eagle3data.validation.findings import Finding, Level, Report, Severity
from eagle3data.view.shards import shard_norms
from tests.planned import PlannedSet
from tests.support import random_samples, small_manifest, write_set
from tests.view.conftest import Client, Open
from tests.view.serving import facts


def tones(html: str) -> list[str]:
    return re.findall(r'<a class="cell ([\w-]+)"', html)


def test_states_of_a_set_in_the_making(tmp_path: Path, client: Client) -> None:
    planned = PlannedSet(str(tmp_path / "set"), 6)
    visitor = client(planned.root.url)
    assert tones(visitor.get("/shards").text) == ["s-planned"] * 6
    for shard in (0, 1, 2):
        planned.commit(shard)
    planned.claim_elsewhere(3)
    planned.claim_of_the_dead(4)
    bury(planned.root, shard=1, sample_id="s1", kind="nonfinite", reason="NaN")
    (tmp_path / "set/index/00000002.arrow").write_bytes(b"torn")
    page = visitor.get("/shards").text
    assert tones(page) == [
        "s-committed", "s-hidden", "s-unreadable", "s-claimed", "s-stale", "s-planned"
    ]  # fmt: skip
    assert facts(page)["state-planned"] == "1"
    assert "shard 0, committed, 1 samples, 100 tokens, 78% full" in page
    assert "shard 5, not begun, 1 samples and 100 tokens planned" in page


def test_norms_are_those_of_the_bytes(states: str) -> None:
    dataset = open_dataset(states)
    found = shard_norms(dataset)
    assert list(found) == [2, 15, 27, 30]
    mine = [dataset.read(at) for at in range(len(dataset)) if dataset.shard_of(at) == 1]
    values = np.concatenate([sample.hidden_states[27] for sample in mine]).astype(float)
    assert found[27][1] == pytest.approx(np.sqrt(np.square(values).mean()), rel=1e-3)


def test_a_shard_of_other_magnitude_stands_out(tmp_path: Path, client: Client) -> None:
    manifest = small_manifest()
    samples = random_samples(12, manifest)
    samples[5].hidden_states = {
        layer: states * 8 for layer, states in samples[5].hidden_states.items()
    }
    url = write_set(tmp_path / "set", samples, manifest)
    shown = tones(client(url).get("/shards?colour=norms&layer=6").text)
    dataset = open_dataset(url)
    strong = {shard for shard, tone in enumerate(shown) if tone == "t8"}
    assert strong == {dataset.shard_of(dataset.position("s5"))}
    assert {tone for tone in shown if tone != "t8"} <= {"t3", "t4", "t5"}


def test_findings_colour_their_shards(states: str, client: Client) -> None:
    assert "Nothing was validated yet" in client(states).get("/shards?colour=findings").text
    report = Report(url=states, level=Level.FULL)
    report.add([Finding(kind="nonfinite", detail="NaN", shard=2)])
    report.add([Finding(kind="odd", detail="x", shard=3, severity=Severity.WARNING)])
    page = client(states, report=report).get("/shards?colour=findings").text
    assert tones(page)[:4] == ["s-clean", "s-clean", "s-unreadable", "s-stale"]


@pytest.mark.parametrize(
    "query",
    ["colour=../../etc", "layer=../2", "layer=3", "first=../0", "first=-1", "colour=<script>"],
)
def test_odd_parameters_are_no_page(states: str, client: Client, query: str) -> None:
    page = client(states).get(f"/shards?{query}")
    assert page.status_code == 404
    assert "expected" in page.text
    assert "<script>" not in page.text


@pytest.mark.parametrize("width", [390, 1600])
def test_in_a_browser(states: str, opened: Open, width: int) -> None:
    visit = opened(states, "/shards?colour=fill", width=width)
    dataset = open_dataset(states)
    cells = str(visit.count("#map .cell"))
    assert cells == visit.fact("shards") == str(dataset.shard_of(len(dataset) - 1) + 1)
    visit.do(lambda page: page.locator("#map .cell").nth(1).hover())
    assert visit.text("#said").startswith("shard 1, committed")
    assert visit.fits()
    visit.do(lambda page: page.locator("#map .cell").nth(1).click())
    mine = [at for at in range(len(dataset)) if dataset.shard_of(at) == 1]
    assert visit.fact("found") == str(len(mine))
    assert visit.count("tbody tr") == len(mine)
    assert visit.fits()
