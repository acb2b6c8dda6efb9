"""The data card: what it says, whose it is, and that nothing in a set becomes more than text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from eagle3data import open_dataset, validate
from eagle3data.readers.card import NAME, render_card, write_card
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury
from tests.support import Command, random_samples, small_manifest, write_set


@pytest.fixture
def url(tmp_path: Path) -> str:
    manifest = small_manifest()
    return write_set(tmp_path / "set", random_samples(12, manifest, longest=60), manifest)


def test_it_says_what_the_set_is(url: str) -> None:
    dataset = open_dataset(url)
    card = render_card(dataset)
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert metadata["size_categories"] == ["n<1K"]
    assert metadata["configs"] == [{"config_name": "index", "data_files": "index/all.arrow"}]
    assert f"| samples | {len(dataset):,} |" in card
    assert f"| tokens | {dataset.tokens:,}, " in card
    assert f"| generation | {dataset.generation} |" in card
    assert "No validation is told here." in card
    rms = dataset.index["rms"].to_pylist()
    median = sorted(row[0] for row in rms if row)[len(rms) // 2 - 1 : len(rms) // 2 + 1]
    assert f"| 2 | {sum(median) / 2:.3g} |" in card


def test_a_card_is_kept_up_and_a_persons_own_is_kept(url: str) -> None:
    path = Path(url, NAME)
    assert write_card(open_dataset(url))
    first = path.read_text()
    told = json.loads(validate(url, level="full").to_json())
    assert write_card(open_dataset(url), told)
    with_report = path.read_text()
    assert f"**{told['verdict']}** at level full" in with_report
    # An extraction that finds nothing to do must not forget what was found.
    assert write_card(open_dataset(url))
    assert path.read_text() == with_report != first
    bury(Root(url), shard=0, sample_id="s0", kind="chunk_corrupt", reason="a test")
    assert write_card(open_dataset(url))
    assert "hidden by tombstones" in path.read_text()
    path.write_text("# mine\n")
    assert not write_card(open_dataset(url), told)
    assert path.read_text() == "# mine\n"


def test_names_stay_text(tmp_path: Path) -> None:
    manifest = small_manifest()
    name = '"]\n---\n<script>alert(1)</script> | x \x1b[31m'
    target = manifest.target.model_copy(update={"name": name})
    hostile = manifest.model_copy(update={"target": target})
    url = write_set(tmp_path / "set", random_samples(3, hostile, longest=20), hostile)
    card = render_card(open_dataset(url))
    assert yaml.safe_load(card.split("\n---\n")[0])["pretty_name"].endswith(name)
    assert "<script>" not in card.partition("\n---\n")[2]
    assert "\x1b" not in card


def test_the_command(url: str, tmp_path: Path, command: Command) -> None:
    report = tmp_path / "report.json"
    report.write_text(command("validate", url, "--level", "quick", "--json").stdout)
    done = command("card", url, "--report", report)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("---\npretty_name: ")
    assert "at level quick" in done.stdout
    assert not Path(url, NAME).exists()
    assert command("card", url, "--write").returncode == 0
    Path(url, NAME).write_text("# mine\n")
    done = command("card", url, "--write")
    assert (done.returncode, "somebody else" in done.stderr) == (1, True)
    report.write_text("{}")
    assert command("card", url, "--report", report).returncode == 2
    assert validate(url, level="full").verdict != "faulty"
