"""Killed in mid-epoch and resumed in another process, at another world size: the page's stream."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from typing import Any

import pytest

from eagle3data import Dataset, StreamingLoader, open_dataset
from tests.readers.from_the_page import Page
from tests.readers.test_growing import MANIFEST
from tests.readers.test_growing import selected_of_rounds as of_rounds
from tests.support import random_samples, write_set

BUDGET, COUNT = 64, 150


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    url = tmp_path_factory.mktemp("resumes") / "set"
    return open_dataset(write_set(url, random_samples(COUNT, MANIFEST, longest=100), MANIFEST))


def _run(url: str, *words: object) -> dict[str, Any]:
    """What a process said before it killed itself."""
    command = [sys.executable, "-m", "tests.readers.resuming_program", url, *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return dict(json.loads(done.stdout))


def _resume_at_random(dataset: Dataset, resumes: int, seed: int) -> None:
    """Runs of one stream after another, each from the state that the one before it left."""
    choose = random.Random(seed)
    (rows,) = of_rounds(dataset, "0-9999")
    done = 0
    while done < resumes:
        shuffle = choose.choice(["global", "shard"])
        stream = choose.getrandbits(64)
        page = Page([rows], BUDGET, seed=stream, shuffle=shuffle)
        settings = {"token_budget": BUDGET, "seed": stream, "shuffle": shuffle}
        settings["over_budget"] = "split"
        epoch, position, state = choose.randrange(1000), 0, "-"
        packs = len(page.packs(epoch))
        while position < packs and done < resumes:
            ranks = choose.randint(1, 8)
            steps = choose.randint(1, max(1, packs // ranks // 3))
            words = (ranks, steps, json.dumps(settings), state, epoch)
            row = _run(dataset.url, *words)
            expected = [
                [
                    [dataset.sample_id(document.row) for document in step]
                    for step in page.rank(epoch, rank, ranks, position)[:steps]
                ]
                for rank in range(ranks)
            ]
            assert row["names"] == expected, (words, position)
            left = len(page.rank(epoch, 0, ranks, position))
            position = min(packs, position + ranks * steps)
            stands = (epoch, position) if steps <= left else (epoch + 1, 0)
            for reached in row["states"]:
                assert reached == row["states"][0]
                assert (reached["epoch"], reached["consumed"]) == stands
            done += state != "-"
            state = json.dumps(row["states"][0])


def test_a_few_resumes_in_fresh_processes(dataset: Dataset) -> None:
    _resume_at_random(dataset, 3, seed=0)


@pytest.mark.soak
def test_two_hundred_resumes_in_fresh_processes(dataset: Dataset) -> None:
    _resume_at_random(dataset, 200, seed=1)


def test_eight_ranks_to_four_to_six_and_back(dataset: Dataset) -> None:
    state, names = None, []
    for ranks, steps in ((8, 2), (4, 5), (6, 3), (8, 10**9)):
        loaders = []
        for rank in range(ranks):
            loader = StreamingLoader(
                dataset,
                token_budget=BUDGET,
                over_budget="split",
                rank=rank,
                world_size=ranks,
                layers=[2],
            )
            if state is not None:
                loader.load_state_dict(state)
            for number, batch in enumerate(loader, 1):
                firsts = batch.position_ids[batch.cu_seqlens[:-1].long()].tolist()
                names += list(zip(batch.sample_ids, firsts, strict=True))
                if number == steps:
                    break
            loaders.append(loader)
        state = loaders[0].state_dict()
        assert all(loader.state_dict() == state for loader in loaders)
    assert state is not None
    assert (state["epoch"], state["consumed"]) == (1, 0)
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(
        (dataset.sample_id(row), first)
        for row in range(COUNT)
        for first in range(0, dataset.length(row), BUDGET)
    )
