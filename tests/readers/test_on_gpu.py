"""Copies to a GPU. Needs one: `pytest --noconftest tests/readers/test_on_gpu.py` where there is."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from eagle3data import Batch, Dataset, StreamingLoader, open_dataset
from eagle3data.readers.device_copies import tensors
from tests.readers.feeding_set import BUDGET, SAMPLES, require_right, write
from tests.support import random_samples, small_manifest, write_set

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
_LATE = 20_000_000
"""Clock cycles, about 10 ms: longer than a copy of these batches takes."""


def _keep_busy() -> None:
    torch.cuda._sleep(_LATE)  # type: ignore[no-untyped-call]


def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("gpu"))


def _loader(dataset: Dataset, **settings: object) -> StreamingLoader:
    return StreamingLoader(
        dataset,
        token_budget=BUDGET,
        threads=3,
        device="cuda",
        **settings,  # type: ignore[arg-type]
    )


def test_batches_that_are_held_stay_right(dataset: Dataset) -> None:
    batches = list(_loader(dataset, prefetch_bytes=1 << 20))
    assert sorted(name for batch in batches for name in batch.sample_ids) == sorted(SAMPLES)
    for batch in batches:
        assert {tensor.device.type for tensor in tensors(batch)} == {"cuda"}
        require_right(batch)


@pytest.mark.parametrize("where", ["default stream", "own stream"])
def test_kernels_that_read_late_read_what_was_handed_over(dataset: Dataset, where: str) -> None:
    """The host runs ahead: each batch is dropped long before the kernel that reads it runs."""
    loader = _loader(dataset)
    stream = torch.cuda.current_stream() if where == "default stream" else _stream()
    taken: list[tuple[list[str], torch.Tensor, torch.Tensor]] = []
    with torch.cuda.stream(stream):
        for _ in range(4):
            for batch in loader:
                _keep_busy()
                taken.append(
                    (batch.sample_ids, batch.hidden_states.clone(), batch.input_ids.clone())
                )
    stream.synchronize()
    plain = StreamingLoader(dataset, token_budget=BUDGET, device="cpu")
    expected = [batch for _ in range(4) for batch in list(plain)]
    assert len(taken) == len(expected)
    for (names, states, ids), batch in zip(taken, expected, strict=True):
        assert names == batch.sample_ids
        assert torch.equal(states.cpu(), batch.hidden_states)
        assert torch.equal(ids.cpu(), batch.input_ids)


def test_a_copy_by_hand_may_be_late_too(dataset: Dataset) -> None:
    """Without `device`: `batch.to(non_blocking=True)`, the batch dropped at once."""
    loader = StreamingLoader(dataset, token_budget=BUDGET, prefetch_bytes=0)
    moved: list[Batch] = []
    for batch in loader:
        _keep_busy()
        moved.append(batch.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    for batch in moved:
        require_right(batch)


def test_memory_of_host_and_device_is_bounded(tmp_path: Path) -> None:
    manifest = small_manifest(shard_tokens=4096)
    samples = random_samples(300, manifest, longest=900)
    dataset = open_dataset(write_set(tmp_path / "set", samples, manifest))
    budget = 4096
    loader = StreamingLoader(
        dataset, token_budget=budget, threads=4, device="cuda", prefetch_bytes=0
    )
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    batch_bytes = 0
    for _ in range(4):
        for batch in loader:
            _keep_busy()
            batch_bytes = sum(tensor.nbytes for tensor in tensors(batch))
    # In use, handed over, and begun ahead; and one whose last kernel has not run yet.
    assert torch.cuda.max_memory_allocated() - before <= 4.5 * batch_bytes
    assert loader._buffers.made <= 3


@pytest.mark.parametrize("how", ["break", "delete"])
def test_ending_early_leaves_nothing_running(dataset: Dataset, how: str) -> None:
    loader = _loader(dataset, prefetch_bytes=1 << 20)
    stream = iter(loader)
    batch = next(stream)
    if how == "delete":
        del loader
    del stream
    gc.collect()
    require_right(batch)


def test_the_metrics_know_the_device(dataset: Dataset) -> None:
    loader = _loader(dataset)
    for _ in loader:
        _keep_busy()
    assert loader.metrics.stalled > 0
    assert loader.metrics.waited + loader.metrics.stalled < loader.metrics.seconds
