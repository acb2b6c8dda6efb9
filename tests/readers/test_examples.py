"""The examples for others' loops: each stops, goes on, and has seen each batch in its order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3data import StreamingLoader, open_dataset
from tests.support import random_samples, small_manifest, write_set

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "loaders"
FIRST, STEPS = 3, 9
"""The first run stops in mid-epoch; the second goes on into the next one."""
Seen = dict[int, list[str]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    manifest = small_manifest(shard_tokens=256)
    folder = tmp_path_factory.mktemp("examples") / "set"
    return write_set(folder, random_samples(120, manifest, longest=60), manifest)


def _expected(url: str, rank: int, world_size: int, state: dict[str, Any] | None = None) -> Seen:
    loader = StreamingLoader(
        open_dataset(url), token_budget=1024, seed=0, rank=rank, world_size=world_size
    )
    first = 1
    if state is not None:
        loader.load_state_dict(state)
        first = FIRST + 1
    batches = islice(chain.from_iterable(repeat(loader)), STEPS - first + 1)
    return {step: batch.sample_ids for step, batch in enumerate(batches, first)}


def _run(words: list[object]) -> str:
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _seen(text: str, prefix: str = "") -> Seen:
    found = re.findall(rf"{prefix}step (\d+) loss [\d.]+ ?(.*)", text)
    return {int(step): names.split() for step, names in found}


@pytest.mark.parametrize("name", ["plain", "with_lightning", "with_accelerate"])
def test_stops_and_goes_on(name: str, url: str, tmp_path: Path) -> None:
    words = [sys.executable, EXAMPLES / f"{name}.py", url, "--save", tmp_path / "saved", "--steps"]
    expected = _expected(url, 0, 1)
    first, second = (_seen(_run([*words, steps])) for steps in (FIRST, STEPS))
    assert list(first) == list(range(1, FIRST + 1))
    assert {**first, **second} == expected
    assert list(second) == list(range(FIRST + 1, STEPS + 1))


def test_ray_train_goes_on_with_two_workers_where_one_process_stopped(
    url: str, tmp_path: Path
) -> None:
    pytest.importorskip("ray.train")
    folder = tmp_path / "saved"
    folder.mkdir()
    saved = folder / "state.pt"
    _run([sys.executable, EXAMPLES / "plain.py", url, "--save", saved, "--steps", FIRST])
    state = torch.load(saved)["loader"]
    program = EXAMPLES / "with_ray_train.py"
    text = _run([sys.executable, program, url, "--save", folder, "--steps", STEPS])
    for rank in (0, 1):
        assert _seen(text, f"rank {rank} ") == _expected(url, rank, 2, state)
    assert torch.load(saved)["step"] == STEPS
