"""Reading ahead: what is held stays right, memory goes round, and nothing is left running."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagle3data import Batch, Dataset, StreamingLoader, open_dataset
from eagle3data.readers.host_buffers import HostBuffers
from eagle3data.readers.together import Together
from eagle3data.schema.errors import InputError
from tests.readers.feeding_set import BUDGET, MANIFEST, SAMPLES, require_right, write
from tests.support import write_set


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("feeding"))


def _loader(dataset: Dataset, **settings: Any) -> StreamingLoader:
    return StreamingLoader(dataset, token_budget=BUDGET, **settings)


def _load_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("eagle3data-load")]


def test_batches_that_are_held_stay_right(dataset: Dataset) -> None:
    batches = list(_loader(dataset, threads=3, prefetch_bytes=1 << 20))
    assert sorted(name for batch in batches for name in batch.sample_ids) == sorted(SAMPLES)
    for batch in batches:
        require_right(batch)


def test_views_alone_keep_their_memory(dataset: Dataset) -> None:
    loader = _loader(dataset, threads=2)
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for batch in loader:
        view = batch.hidden_states[1][3:17]
        held.append((view, view.clone()))
    gc.collect()
    assert all(torch.equal(view, taken) for view, taken in held)


def test_memory_goes_round(dataset: Dataset) -> None:
    loader = _loader(dataset, threads=2)
    ahead = 3
    loader = _loader(dataset, threads=2, prefetch_bytes=ahead * loader._buffers.nbytes)
    steps = 0
    for epoch in range(3):
        loader.set_epoch(epoch)
        for batch in loader:
            require_right(batch)
            steps += 1
    assert steps > 3 * (ahead + 1)
    # Those ahead, the one in hand, and the one taken before the one in hand is let go.
    assert loader._buffers.made <= ahead + 2


def test_buffers_come_back_with_the_last_view() -> None:
    buffers = HostBuffers((2, 4), np.float16)
    lent = buffers.take()
    tensor = torch.from_numpy(lent)
    row = tensor.view(torch.bfloat16)[1]
    del lent, tensor
    assert buffers.take() is not None
    assert buffers.made == 2
    del row
    buffers.take()
    assert buffers.made == 2


@pytest.mark.parametrize("how", ["break", "error", "delete", "end"])
def test_no_thread_is_left(dataset: Dataset, how: str) -> None:
    loader = _loader(dataset, threads=3, prefetch_bytes=1 << 20)
    stream: Iterator[Batch] = iter(loader)
    next(stream)
    assert _load_threads()
    if how == "end":
        list(stream)
    elif how == "error":
        with pytest.raises(ZeroDivisionError):
            _fail(stream)
    elif how == "delete":
        del loader
    del stream
    gc.collect()
    assert not _load_threads()


def _fail(stream: Iterator[Batch]) -> None:
    for _ in stream:
        raise ZeroDivisionError


def test_what_a_thread_meets_ends_the_iteration(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(Together, "stored", read)
    with pytest.raises(MemoryError, match="no more"):
        next(iter(_loader(dataset)))
    assert not _load_threads()


def test_the_state_counts_what_was_handed_over(dataset: Dataset) -> None:
    whole = [batch.sample_ids for batch in _loader(dataset)]
    loader = _loader(dataset, threads=3, prefetch_bytes=1 << 30)
    stream = iter(loader)
    for step in range(4):
        next(stream)
        state = copy.deepcopy(loader.state_dict())
        assert state["consumed"] == step + 1
        again = _loader(dataset)
        again.load_state_dict(state)
        assert [batch.sample_ids for batch in again] == whole[step + 1 :]


def test_a_position_changed_under_an_iteration_is_told(dataset: Dataset) -> None:
    loader = _loader(dataset)
    stream = iter(loader)
    next(stream)
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(InputError, match="position was changed"):
        next(stream)
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(InputError, match="another iteration"):
        next(first)


def test_metrics_add_up(dataset: Dataset) -> None:
    loader = _loader(dataset, layers=[2, 12])
    assert loader.metrics.wait_share == 0.0
    batches = list(loader)
    metrics = loader.metrics
    assert metrics.batches == len(batches)
    assert metrics.tokens == sum(len(sample) for sample in SAMPLES.values())
    assert metrics.bytes == metrics.tokens * 2 * MANIFEST.hidden_size * 2
    assert 0 < metrics.wait_share <= 1
    assert "tokens/s" in str(metrics)


def test_a_fresh_loader_has_every_layer_it_was_asked_for_only(
    dataset: Dataset, tmp_path: Path
) -> None:
    """A layer nobody asks for is not read: its objects may even be gone."""
    url = write_set(tmp_path / "set", list(SAMPLES.values())[:9], MANIFEST)
    for file in (tmp_path / "set" / "hidden_states/2").rglob("*"):
        if file.is_file() and file.name != "zarr.json":
            file.unlink()
    layers = [layer for layer in MANIFEST.layers if layer != 2]
    for batch in StreamingLoader(open_dataset(url), token_budget=BUDGET, layers=layers):
        require_right(batch)
