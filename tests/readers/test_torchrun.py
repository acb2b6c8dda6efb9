"""Ranks that torchrun starts: they share an epoch, agree on its state, and follow as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3data import Dataset, StreamingLoader, open_dataset
from tests.readers.from_the_page import Page, growing_packs, step_of
from tests.readers.test_growing import COUNT, EXTRACTION, MANIFEST
from tests.readers.test_growing import selected_of_rounds as of_rounds
from tests.support import random_samples, write_set

BUDGET, SEED = 64, 11


def torchrun(ranks: int, out: Path, *words: object) -> list[dict[str, Any]]:
    """What each rank wrote."""
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", "tests.readers.torchrun_program"]
    url, *rest = map(str, words)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [url, str(out), *rest]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


def _names(dataset: Dataset, steps: list[list[Any]]) -> list[list[str]]:
    return [[dataset.sample_id(document.row) for document in step] for step in steps]


def test_two_ranks_share_an_epoch_and_three_go_on(tmp_path: Path) -> None:
    samples = random_samples(200, MANIFEST, longest=60)
    url = write_set(tmp_path / "set", samples, MANIFEST)
    dataset = open_dataset(url)
    page = Page([of_rounds(dataset, "0-999")[0]], BUDGET, seed=SEED)
    first = torchrun(2, tmp_path / "out", url, "plain", 9)
    assert all("init_process_group" in row["refused"] for row in first)
    assert first[0]["state"] == first[1]["state"]
    for rank, row in enumerate(first):
        assert row["names"] == _names(dataset, page.rank(0, rank, 2)[:9])
    rest = []
    for rank in range(3):
        loader = StreamingLoader(
            dataset, token_budget=BUDGET, seed=SEED, layers=[2], rank=rank, world_size=3
        )
        loader.load_state_dict(first[0]["state"])
        rest.append([batch.sample_ids for batch in loader])
        assert rest[rank] == _names(dataset, page.rank(0, rank, 3, start=18))
    batches = [batch for each in (*(row["names"] for row in first), *rest) for batch in each]
    assert sorted(name for batch in batches for name in batch) == sorted(
        sample.sample_id for sample in samples
    )


def test_two_ranks_follow_an_extraction_as_one(tmp_path: Path) -> None:
    url = write_set(tmp_path / "set", [], MANIFEST)
    extraction = subprocess.Popen([sys.executable, "-c", EXTRACTION, url])
    rows = torchrun(2, tmp_path / "out", url, "follow", "all")
    assert extraction.wait() == 0
    dataset = open_dataset(url)
    assert rows[0]["state"] == rows[1]["state"]
    rounds = of_rounds(dataset, rows[0]["state"]["parts"])
    packs = growing_packs(rounds, BUDGET, SEED)
    steps = [step_of(packs[at : at + 2], 2, BUDGET) for at in range(0, len(packs), 2)]
    for rank, row in enumerate(rows):
        assert row["names"] == _names(dataset, [step[rank] for step in steps])
    names = [name for row in rows for batch in row["names"] for name in batch]
    assert len(names) == len(set(names)) == COUNT


@pytest.mark.soak
def test_ranks_are_told_of_an_extraction_that_stands_still(tmp_path: Path) -> None:
    url = write_set(tmp_path / "set", [], MANIFEST)
    with pytest.raises(AssertionError, match="StalledError") as told:
        torchrun(2, tmp_path / "out", url, "stalled", "all")
    assert str(told.value).count("StalledError: ") >= 2, "every rank raises it"
