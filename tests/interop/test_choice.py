"""Which layout a path has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from eagle3data.interop.choice import FORMATS
from eagle3data.schema.errors import InputError
from tests.interop.layouts import (
    samples,
    specforge_features,
    write_arrow,
    write_deepspec,
    write_eagle,
    write_modelopt,
    write_specforge,
    write_speculators,
    write_torchspec,
)
from tests.interop.reading import opened


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no layout that is known.*speculators, specforge"):
        opened(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        opened(tmp_path / "absent")
    torch.save({"model": torch.zeros(2)}, tmp_path / "weights.pt")
    with pytest.raises(InputError, match="no layout that is known"):
        opened(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_folder_of_a_named_layout(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        opened(tmp_path, format=name).facts()


def test_a_name_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no format 'webdataset'"):
        opened(tmp_path, format="webdataset")


def test_two_layouts_at_once_are_named(tmp_path: Path) -> None:
    write_arrow(tmp_path, samples())
    write_speculators(tmp_path, samples())
    torch.save({1: 2}, tmp_path / "token_freq.pt")  # prepare-data's own, no dump
    assert opened(tmp_path).format == "speculators"
    write_deepspec(tmp_path, samples())
    with pytest.raises(InputError, match=r"several layouts: deepspec .*; speculators \(hs_"):
        opened(tmp_path)
    assert opened(tmp_path, format="deepspec").format == "deepspec"


def test_features_outside_of_groups_are_known_by_their_keys(tmp_path: Path) -> None:
    (tmp_path / "data_0.ckpt").write_bytes(b"torn")
    torch.save(specforge_features(samples()[1]), tmp_path / "data_1.ckpt")
    assert opened(tmp_path).format == "specforge"


def test_no_torch_before_a_torch_file() -> None:
    probe = "import eagle3data.interop.choice, sys; print({'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "write",
    [
        write_speculators,
        write_specforge,
        write_deepspec,
        write_modelopt,
        write_eagle,
        write_torchspec,
    ],
)
def test_many_threads_read_what_one_does(tmp_path: Path, write: Callable[..., Path]) -> None:
    if write is write_speculators:
        write_arrow(tmp_path, samples())
    source = opened(write(tmp_path, samples()))
    alone = {entry.place: np.stack(source.states(entry)) for entry in source.entries()}
    shared = opened(tmp_path)  # nothing read of it yet
    with ThreadPoolExecutor(8) as pool:
        again = list(pool.map(shared.states, shared.entries() * 3))
    for entry, states in zip(source.entries() * 3, again, strict=True):
        assert np.array_equal(np.stack(states), alone[entry.place])
