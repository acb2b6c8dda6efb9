"""`validate` on the command line: exit codes, the JSON document and the report for people."""

from __future__ import annotations

import json
import shutil
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


def test_page(stored: StoredSet, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    code, text = run(str(stored.folder), "--level", "quick", "--html", str(file), "--json")
    assert code == 0
    assert json.loads(text)["verdict"] == "clean"
    assert "Clean" in file.read_text()
    code, _ = run(str(stored.folder), "--html", str(tmp_path / "nowhere" / "report.html"))
    assert code == 2


def test_a_saved_report_is_shown_again(stored: StoredSet, tmp_path: Path) -> None:
    url = str(stored.folder)
    stored.object_of(6, stored.rows()[2]["sample_id"]).unlink()
    code, saved = run(url, "--json")
    assert code == 1
    file, page = tmp_path / "report.json", tmp_path / "report.html"
    file.write_text(saved)
    shutil.rmtree(stored.folder)
    assert run(url, "--report", str(file), "--html", str(page), "--json") == (1, saved)
    assert "object_missing" in page.read_text()
    assert run("./other", "--report", str(file))[0] == 2


def test_resume(stored: StoredSet, tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    file.write_text("something else\n")
    assert run(str(stored.folder), "--resume", str(file))[0] == 2
    file.unlink()
    assert run(str(stored.folder), "--resume", str(file), "--afresh")[0] == 0
    assert not file.exists()


def test_a_check_is_noted_in_the_cache_and_leaves_nothing(
    stored: StoredSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run(str(stored.folder))[0] == 0
    assert run(str(tmp_path / "nothing"))[0] == 2
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    (tmp_path / "full").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))
    assert run(str(stored.folder))[0] == 0


def test_what_to_do_comes_last_and_once(stored: StoredSet) -> None:
    for row in stored.rows()[2:4]:
        stored.object_of(6, row["sample_id"]).unlink(missing_ok=True)
    _, text = run(str(stored.folder))
    assert "errors of" in text.splitlines()[1]
    assert text.count("eagle3data repair") == 1
    assert text.splitlines()[-2] == "what to do"


def test_a_sample_id_does_not_steer_the_terminal(stored: StoredSet) -> None:
    row = stored.rows()[2]

    def rename(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return [
            {**one, "sample_id": "\x1b[2Jgone[bold]"}
            if one["sample_id"] == row["sample_id"]
            else one
            for one in rows
        ]

    stored.edit_rows(rename, row["shard"])
    _, text = run(str(stored.folder), "--level", "quick")
    assert "\x1b" not in text
    assert "\\x1b[2Jgone[bold]" in text


def test_could_not_run(tmp_path: Path) -> None:
    assert run(str(tmp_path))[0] == 2
    assert run(str(tmp_path), "--level", "deep")[0] == 2
