"""Tensors here are tiny: a second thread costs more than it brings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainer import small


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A data set, whose training packs are odd in number, and the folder of its target."""
    root = tmp_path_factory.mktemp("made")
    target = small.target_folder(root / "target")
    return str(small.data_set(root / "states", target)), str(target)
