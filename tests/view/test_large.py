"""A set of 10,000 samples, and an extraction that really runs, both in the browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.index import write_parts
from eagle3data import open_dataset
from eagle3data.readers.overview import overview
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import consolidate_index
from tests.killing import start
from tests.support import Command
from tests.view.conftest import Client, Open
from tests.view.serving import facts
from tests.view.test_shards import tones

SHARDS, SAMPLES = 1000, 10


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its index alone, which is all that these pages read."""
    folder = tmp_path_factory.mktemp("large") / "set"
    write_parts(folder, parts=SHARDS, samples=SAMPLES, tokens=100)
    consolidate_index(Root(str(folder)))
    return str(folder)


def test_ten_thousand_samples(large: str, client: Client, opened: Open) -> None:
    dataset = open_dataset(large)
    known = overview(dataset)
    visitor = client(large)
    shown = facts(visitor.get("/").text)
    assert shown["samples"] == str(known["samples"]) == str(SHARDS * SAMPLES)
    assert shown["tokens"] == str(known["tokens"])
    assert len(tones(visitor.get("/shards").text)) == SHARDS
    assert facts(visitor.get("/samples").text)["found"] == str(SHARDS * SAMPLES)
    wanted = dataset.sample_id(SHARDS * SAMPLES - 1)
    assert facts(visitor.get(f"/samples?q={wanted}").text)["found"] == "1"
    visit = opened(large, "/shards", width=390)
    assert visit.count("a.cell") == SHARDS
    assert visit.fits()


def test_an_extraction_is_followed(
    smollm2: Path, prompts: Path, tmp_path: Path, command: Command, opened: Open
) -> None:
    url = tmp_path / "set"
    process = start(["extract", prompts, "--model", smollm2, "--out", url, "--shard-tokens", 768])
    while process.poll() is None and not (url / "zarr.json").exists():
        pass
    visit = opened(str(url), "/live")
    visit.wait_for("#fact-committed[value='1']")
    assert process.poll() is None
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    status = json.loads(command("status", url, "--json").stdout)
    assert status["complete"]
    visit.wait_for(f"#fact-committed[value='{status['shards']['planned']}']")
    assert visit.text(".progress-head").startswith("All is committed")
    assert visit.fact("tokens") == str(status["tokens"]["committed"])
