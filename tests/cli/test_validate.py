"""`validate` on the command line: exit codes, the JSON document and the report for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3data.cli.main import app
from tests.faults.stored import StoredSet
from tests.support import random_samples, small_manifest, write_set


@pytest.fixture
def stored(tmp_path: Path) -> StoredSet:
    manifest = small_manifest()
    samples = random_samples(8, manifest, 60)
    for sample in samples:
        sample.loss_mask[0] = 1
    return StoredSet(Path(write_set(tmp_path / "set", samples, manifest)))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["validate", *arguments])
    return result.exit_code, result.stdout


def test_clean(stored: StoredSet) -> None:
    code, text = run(str(stored.folder))
    assert code == 0
    assert text.startswith("clean")
    assert "8 samples" in text


def test_faulty(stored: StoredSet) -> None:
    row = stored.rows()[2]
    stored.object_of(6, row["sample_id"]).unlink()
    code, text = run(str(stored.folder), "--level", "quick")
    assert code == 1
    assert "object_missing" in text
    code, text = run(str(stored.folder), "--json")
    assert code == 1
    report = json.loads(text)
    assert report["verdict"] == "faulty"
    assert row["sample_id"] in {finding["sample_id"] for finding in report["findings"]}


def test_undetermined(stored: StoredSet) -> None:
    pytest.importorskip("torch")
    code, text = run(str(stored.folder), "--level", "semantic")
    assert code == 3
    assert text.startswith("undetermined")


def test_could_not_run(tmp_path: Path) -> None:
    assert run(str(tmp_path))[0] == 2
    assert run(str(tmp_path), "--level", "deep")[0] == 2
