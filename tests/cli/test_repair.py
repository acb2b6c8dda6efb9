"""`repair` and `status` on the command line: exit codes, what is told, and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3data.cli.main import app
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root
from tests.faults.stored import StoredSet
from tests.support import random_samples, small_manifest, write_set


@pytest.fixture
def stored(tmp_path: Path) -> StoredSet:
    manifest = small_manifest()
    samples = random_samples(8, manifest, 60)
    for sample in samples:
        sample.loss_mask[0] = 1
    return StoredSet(Path(write_set(tmp_path / "set", samples, manifest)))


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, result.stdout


def test_clean(stored: StoredSet) -> None:
    assert run("repair", stored.folder, "--dry-run")[0] == 0
    code, text = run("repair", stored.folder)
    assert (code, text) == (0, "Nothing to repair.\n")


def test_told_then_done(stored: StoredSet) -> None:
    row = stored.rows()[2]
    stored.object_of(6, row["sample_id"]).unlink()
    (stored.folder / "input_ids/c/77").write_bytes(b"x")
    code, text = run("repair", stored.folder, "--dry-run")
    assert code == 1
    for word in ("remove_orphan", "input_ids/c/77", "hide_sample", row["sample_id"]):
        assert word in text
    assert "nothing was changed" in text
    assert (stored.folder / "input_ids/c/77").exists()
    code, text = run("repair", stored.folder)
    assert code == 0
    assert "have to be appended again" in text
    code, text = run("repair", stored.folder, "--json")
    assert code == 0
    done = json.loads(text)
    assert done["actions"] == []
    assert done["to_redo"]["samples"] > 0


def test_json_of_a_dry_run_and_a_saved_report(stored: StoredSet, tmp_path: Path) -> None:
    row = stored.rows()[2]
    stored.object_of(6, row["sample_id"]).unlink()
    saved = tmp_path / "report.json"
    saved.write_text(run("validate", stored.folder, "--json")[1])
    code, text = run("repair", stored.folder, "--report", saved, "--dry-run", "--json")
    assert code == 1
    told = json.loads(text)
    assert (told["dry_run"], told["ok"]) == (True, False)
    assert row["sample_id"] in {action["sample_id"] for action in told["actions"]}
    assert run("repair", stored.folder, "--report", saved)[0] == 0
    assert run("repair", stored.folder, "--report", saved, "--dry-run")[0] == 0
    assert run("repair", stored.folder, "--report", saved, "--level", "quick")[0] == 2
    saved.write_text("{}")
    assert run("repair", stored.folder, "--report", saved)[0] == 2


def test_beyond_repair(stored: StoredSet) -> None:
    def one_short(manifest: dict[str, dict[str, object]]) -> None:
        manifest["capture"]["layers"] = [2, 6, 9, 11]

    stored.edit_manifest(one_short)
    code, text = run("repair", stored.folder, "--level", "quick", "--dry-run")
    assert code == 1
    assert "beyond repair" in text
    assert "wrong_final_layer" in text


def test_could_not_run(tmp_path: Path, stored: StoredSet) -> None:
    assert run("repair", tmp_path / "nowhere")[0] == 2
    assert run("repair", stored.folder, "--level", "deep")[0] == 2


def test_status_says_who_holds_what_and_what_is_hidden(stored: StoredSet) -> None:
    here = Owner.current().as_dict()
    root = Root(str(stored.folder))
    owners = {"00000090": here, "00000091": {**here, "host": "elsewhere"}}
    owners["00000092"] = {**here, "started": 1}
    for name, owner in owners.items():
        value = {"owner": owner, "beat": 0, "renewed_at": "2026-01-01T00:00:00+00:00"}
        root.create(f"claims/{name}.0", [json.dumps(value).encode()])
    stored.object_of(6, stored.rows()[0]["sample_id"]).unlink()
    hidden = len([row for row in stored.rows() if row["shard"] == 0])
    assert run("repair", stored.folder, "--level", "quick", "--no-wait")[0] == 0
    code, text = run("status", stored.folder)
    assert code == 0
    assert f"{hidden} samples hidden by tombstones" in text
    assert "on elsewhere" in text
    assert "silent for long" in text
    state = json.loads(run("status", stored.folder, "--json")[1])
    assert [claim["name"] for claim in state["claims"]] == ["00000090", "00000091"]
    assert state["hidden"] == hidden
    for command in ("info", "stats"):
        assert f"{hidden} samples hidden by tombstones" in run(command, stored.folder)[1]
        assert json.loads(run(command, stored.folder, "--json")[1])["hidden"] == hidden
