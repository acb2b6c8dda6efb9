"""Bytes changed at random: a sample or the source is refused, and nothing else happens."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from eagle3data.schema.errors import InputError, SampleError
from tests.interop.layouts import (
    Wanted,
    samples,
    write_arrow,
    write_deepspec,
    write_eagle,
    write_modelopt,
    write_specforge,
    write_speculators,
    write_torchspec,
)
from tests.interop.reading import opened

HEADS = 1500
"""Headers, pickles and indices lie at the beginning of these small files."""


def _speculators(folder: Path, wanted: list[Wanted]) -> Path:
    write_arrow(folder, wanted)
    return write_speculators(folder, wanted)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "write",
    [
        _speculators,
        write_specforge,
        write_deepspec,
        write_modelopt,
        write_eagle,
        write_torchspec,
    ],
)
def test_random_damage_is_refused(tmp_path: Path, write: Callable[..., Path]) -> None:
    whole = write(tmp_path / "whole", samples()[:8])
    refused = sum(
        _refusals_after_damage(whole, tmp_path / "damaged", random.Random(seed))
        for seed in range(400)
    )
    assert refused > 100


def _refusals_after_damage(whole: Path, folder: Path, rng: random.Random) -> int:
    """Damage a file of a copy and read all of it; another error than a refusal comes through."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    _damage(rng.choice(sorted(path for path in folder.rglob("*") if path.is_file())), rng)
    try:
        source = opened(folder)
        source.facts()
    except InputError:
        return 1
    refused = 0
    for entry in source.entries():
        try:
            tokens = source.tokens(entry)
            states = [np.array(slot) for slot in source.states(entry)]
        except SampleError:
            refused += 1
            continue
        assert {len(slot) for slot in states} == {len(tokens.input_ids)}
    return refused


def _damage(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 20])):
        reach = len(data) if rng.random() < 0.5 else min(len(data), HEADS)
        data[rng.randrange(reach)] = rng.randrange(256)
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    path.write_bytes(data)
