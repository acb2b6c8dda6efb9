"""`plan`: room and time of an extraction, by the arithmetic that `extract` goes by."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3data import open_dataset
from eagle3data.extractor.estimate import room_for
from eagle3data.storage.root import Root
from tests.planned import PlannedSet, at
from tests.storage.processes import with_mounts
from tests.support import Command, small_manifest


class Planner:
    def __init__(self, command: Command, prompts: Path, model: Path) -> None:
        self._command, self._words = command, (prompts, "--model", model, "--out")

    def json(self, url: object, *words: object) -> dict[str, Any]:
        done = self._command("plan", *self._words, url, *words, "--json")
        assert done.returncode == 0, done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    def text(self, url: object, *words: object) -> tuple[int, str]:
        done = self._command("plan", *self._words, url, *words)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def planner(command: Command, prompts: Path, smollm2: Path) -> Planner:
    return Planner(command, prompts, smollm2)


def test_shards_bytes_and_time(planner: Planner, smollm2: Path, tmp_path: Path) -> None:
    words = ("--tokens-per-second", 500, "--load-seconds", 30)
    facts = planner.json(tmp_path / "new", *words)
    counts = facts["samples_per_shard"]
    assert 1 <= counts["min"] <= counts["mean"] <= counts["max"]
    assert counts["mean"] * facts["shards"] == pytest.approx(facts["samples"])
    for codec, free in facts["padding_free_bytes"].items():
        assert free < facts["expected_bytes"][codec] < free * 1.06
    assert facts["padding_free_bytes"]["none"] == facts["state_bytes"]
    assert facts["needed_bytes"] > facts["expected_bytes"]["none"]
    assert facts["free_bytes_at_end"] == facts["free_bytes"] - facts["needed_bytes"]
    assert facts["seconds"] == pytest.approx(facts["tokens"] / 500)
    assert facts["total_seconds"] == pytest.approx(facts["seconds"] + 30)
    estimated = planner.json(tmp_path / "new", "--tokens-per-second", 500)
    weights = (smollm2 / "model.safetensors").stat().st_size
    assert estimated["load_seconds"] == pytest.approx(weights / 2e9)
    assert estimated["load_is_estimate"]
    said = planner.text(tmp_path / "new")[1]
    assert "estimated: its weights at 2 GB/s" in said
    assert "3,165 tokens/s (Kimi-K2.5 on 8 GPUs" in said
    assert "without padding" in said


def test_as_fast_as_another_set(planner: Planner, tmp_path: Path) -> None:
    made = PlannedSet(str(tmp_path / "made"), 4)
    code, said = planner.text(tmp_path / "new", "--like", made.root.url)
    assert (code, "doesn't say how fast it was made" in said) == (2, True)
    for shard in range(4):
        made.commit(shard, written_at=at(10 * shard))
    facts = planner.json(tmp_path / "new", "--like", made.root.url)
    assert facts["tokens_per_second"] == pytest.approx(10)
    assert facts["seconds"] == pytest.approx(facts["tokens"] / 10)
    said = planner.text(tmp_path / "new", "--like", made.root.url)[1]
    assert "warning: that speed was measured with another model, synthetic" in said
    both = ("--like", made.root.url, "--tokens-per-second", 3)
    assert planner.text(tmp_path / "new", *both)[0] == 2


def test_what_is_committed_needs_no_room(planner: Planner, states: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    shutil.copytree(states, begun)
    whole = planner.json(tmp_path / "new")
    done = planner.json(begun)
    assert (done["committed_shards"], done["needed_bytes"], done["seconds"]) == (
        whole["shards"],
        0,
        0.0,
    )
    (begun / "index/all.arrow").unlink()
    (begun / "index/00000002.arrow").unlink()
    left = planner.json(begun)
    assert left["committed_shards"] == whole["shards"] - 1
    missing = whole["tokens"] - open_dataset(str(begun)).tokens
    assert left["seconds"] == pytest.approx(missing / left["tokens_per_second"])
    assert 0 < left["needed_bytes"] < whole["needed_bytes"] / 4
    foreign = planner.text(begun, "--shard-tokens", 4096)[1]
    assert "holds a data set from other prompts or with another --shard-tokens" in foreign


def test_extract_refuses_what_plan_says_will_not_fit(
    prompts: Path, smollm2: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounts = f"mount -t tmpfs -o size=10m none '{small}'"
    words = (str(prompts), "--model", str(smollm2), "--out", str(small / "set"))
    program = [sys.executable, "-m", "eagle3data.cli.main"]
    planned = with_mounts(mounts, [*program, "plan", *words])
    assert planned.returncode == 1
    assert "too little" in planned.stdout
    refused = with_mounts(mounts, [*program, "extract", *words, "--engine", "transformers"])
    assert refused.returncode == 2
    assert "Nothing was extracted" in refused.stderr
    needed = planned.stderr.partition("takes ")[2].split()[0]
    assert f"take about {float(needed):.0f} MB" in refused.stderr


def test_a_disk_keeps_its_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = small_manifest()
    root = Root(str(tmp_path))
    taken = room_for(root, manifest, [100, 20])
    aligned = (112 + 32) * len(manifest.layers) * manifest.hidden_size * 2
    assert taken.needed == round(aligned * 1.05)
    enough = taken.needed + round(10**9 * 0.01)
    for free, fits in ((enough, True), (enough - 1, False)):
        monkeypatch.setattr(Root, "room", lambda _, free=free: (free, 10**9))
        assert room_for(root, manifest, [100, 20]).fits is fits
    monkeypatch.setattr(Root, "room", lambda _: None)
    assert room_for(root, manifest, [100, 20]).fits


def test_nothing_is_touched(planner: Planner, tmp_path: Path) -> None:
    planner.json(tmp_path / "new")
    assert os.listdir(tmp_path) == []
