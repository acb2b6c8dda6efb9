"""Training: the curves are the run's records; a run that grows, none, and a damaged one."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from eagle3data.evaluation.acceptance import Acceptance
from eagle3data.evaluation.evaluate import Evaluation, Part
from eagle3data.trainer.records import MetricsFile, read_records
from tests.support import random_samples, small_manifest, write_set
from tests.view.conftest import Client, Open
from tests.view.serving import facts
from tests.view.test_overview import HOSTILE


def rates(step: int) -> dict[str, Any]:
    row = {"kept": 10, "loss": 5.0 / step, "accuracy": 0.1 * step, "acceptance": 0.08 * step}
    return {
        "loss": 8.0 / step,
        "accuracy": 0.1 * step,
        "simulated_acceptance_length": 1 + 0.2 * step,
        "steps": [row, {**row, "accuracy": 0.05 * step}],
    }


def train_record(step: int) -> dict[str, Any]:
    return {"kind": "train", "step": step, "total_steps": 3, "seconds": 2.0, **rates(step)}


@pytest.fixture
def small(tmp_path: Path) -> str:
    return write_set(tmp_path / "set", random_samples(2, small_manifest()), small_manifest())


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    return MetricsFile(tmp_path / "run", lambda _: None)


def charts(html: str) -> dict[str, dict[str, Any]]:
    found = [json.loads(unescape(spec)) for spec in re.findall(r'data-chart="([^"]*)"', html)]
    return {chart["title"]: chart for chart in found}


def test_curves_are_the_records(
    small: str, metrics: MetricsFile, tmp_path: Path, client: Client
) -> None:
    metrics.begin({"kind": "definitions", "loss": HOSTILE})
    metrics.write({"kind": "eval", "step": 0, **rates(1)})
    for step in (1, 2):
        metrics.write(train_record(step))
    page = client(small, run=tmp_path / "run").get("/training").text
    drawn = charts(page)
    assert drawn["Loss"]["x"] == [1, 2]
    assert drawn["Loss"]["series"][0]["y"] == [8.0, 4.0]
    positions = drawn["Accuracy by drafted position"]["series"]
    assert [series["y"] for series in positions] == [[0.1, 0.2], [0.05, 0.1]]
    assert drawn["Loss of what is held out"]["series"][0]["y"] == [8.0]
    shown = facts(page)
    assert (shown["step"], shown["loss"], shown["simulated"]) == ("2", "4.0", "1.4")
    assert "data-again-in" in page
    assert "<script>alert" not in page
    metrics.write(train_record(3))
    assert "data-again-in" not in client(small, run=tmp_path / "run").get("/training/part").text


def test_no_run_and_a_line_in_the_making(
    small: str, metrics: MetricsFile, tmp_path: Path, client: Client
) -> None:
    assert "No run was named" in client(small).get("/training").text
    visitor = client(small, run=tmp_path / "run")
    assert "holds no training run" in visitor.get("/training").text
    metrics.begin({"kind": "definitions"})
    assert "has recorded no step yet" in visitor.get("/training/part").text
    metrics.write(train_record(1) | {"loss": float("nan")})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert [record["kind"] for record in read_records(tmp_path / "run")] == ["definitions", "train"]
    page = visitor.get("/training").text
    assert charts(page)["Loss"]["series"][0]["y"] == [None]


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    """A report as `evaluate --out` writes it."""
    counts = Acceptance(
        drafts=100, draft_tokens=300, accepted_tokens=120, accepted_by_position=(70, 35, 15)
    )
    part = Part(conversations=4, answers=8, tokens=220, seconds=2.0, acceptance=counts)
    made = Evaluation(
        draft="d", model="m", num_speculative_tokens=3, parts={HOSTILE: part}, rejected=0
    )
    file = tmp_path / "acceptance.json"
    file.write_text(json.dumps(made.as_dict()))
    return file


def test_what_evaluate_measured(small: str, evaluation: Path, client: Client) -> None:
    page = client(small, evaluation=evaluation).get("/training").text
    assert facts(page)["acceptance-length"] == "2.2"
    assert charts(page)["Kept, by drafted position"]["series"][0]["y"] == [0.7, 0.35, 0.15]
    assert "<script>alert" not in page
    evaluation.write_text("{}")
    assert "is no report of" in client(small, evaluation=evaluation).get("/training").text
    evaluation.unlink()
    page = client(small, evaluation=evaluation).get("/training").text
    assert "can't be read" in unescape(page)


def test_a_run_is_followed_in_a_browser(
    small: str, metrics: MetricsFile, evaluation: Path, tmp_path: Path, opened: Open
) -> None:
    metrics.begin({"kind": "definitions", "loss": "what it is"})
    metrics.write(train_record(1))
    run = tmp_path / "run"
    visit = opened(small, "/training", width=390, run=run, evaluation=evaluation)
    assert visit.fact("step") == "1"
    assert visit.drawn_charts() == 5
    metrics.write(train_record(2))
    visit.wait_for("#fact-step[value='2']")
    assert visit.drawn_charts() == 5
    assert visit.fits()
