"""Copies to a device: the order of copies, memory and the consumer's work.

On a machine without a GPU by an imitated device that does everything as late as it may; what
CUDA itself does is in test_on_gpu.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3data import Dataset, StreamingLoader, open_dataset
from eagle3data.readers.device_copies import device_of
from eagle3data.readers.filling import Filling
from eagle3data.readers.host_buffers import HostBuffers
from eagle3data.readers.together import Together
from eagle3data.schema.errors import CorruptionError, InputError
from tests.readers.feeding_set import BUDGET, MANIFEST, SAMPLES, require_right, write
from tests.readers.imitated_device import ImitatedDevice
from tests.support import write_set


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("device"))


def _loader(
    dataset: Dataset, device: ImitatedDevice, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> StreamingLoader:
    monkeypatch.setattr(StreamingLoader, "_copies_to", device)
    return StreamingLoader(dataset, token_budget=BUDGET, threads=3, **settings)


@pytest.mark.parametrize("ahead", [2, 5])
def test_late_copies_and_a_consumer_that_only_queues(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    nbytes = _loader(dataset, ImitatedDevice(), monkeypatch)._buffers.nbytes
    loader = _loader(dataset, ImitatedDevice(), monkeypatch, prefetch_bytes=ahead * nbytes)
    for _ in range(3):
        device, seen = ImitatedDevice(), list[str]()
        monkeypatch.setattr(StreamingLoader, "_copies_to", device)
        for batch in loader:
            device.launch(partial(require_right, batch))
            device.launch(partial(seen.extend, batch.sample_ids))
        device.run()
        assert sorted(seen) == sorted(SAMPLES)
        # In use, handed over, and begun ahead.
        assert device.most_unpassed <= 3
    # Filled or being filled, and the one whose copy has not passed when it is taken again.
    assert loader._buffers.made <= ahead + 1


def test_the_next_copy_is_begun_while_a_batch_is_used(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = ImitatedDevice()
    monkeypatch.setattr(Filling, "is_done", True)
    stream = iter(_loader(dataset, device, monkeypatch))
    next(stream)
    assert len(device.copies) == 2
    next(stream)
    assert len(device.copies) == 3
    assert not device.copies[2].passed
    stream.close()  # type: ignore[attr-defined]
    assert all(copy.passed for copy in device.copies)


def test_what_is_held_stays_right(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    device = ImitatedDevice()
    batches = list(_loader(dataset, device, monkeypatch))
    device.run()
    for batch in batches:
        require_right(batch)


def test_a_copy_counts_when_it_is_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage in a batch that is only read ahead is not told, and not counted, yet."""
    url = write_set(tmp_path / "set", list(SAMPLES.values()), MANIFEST)
    dataset = open_dataset(url)
    device = ImitatedDevice()
    loader = _loader(dataset, device, monkeypatch, shuffle=False)
    bad = loader.packs[1][0]
    _damage(dataset, bad, monkeypatch)
    stream = iter(loader)
    next(stream)
    with pytest.raises(CorruptionError):
        next(stream)
    skipping = _loader(dataset, device, monkeypatch, shuffle=False, on_error="skip")
    stream = iter(skipping)
    next(stream)
    assert skipping.skipped == 0
    second = next(stream)
    device.run()
    assert skipping.skipped == 1
    assert dataset.sample_id(bad) not in second.sample_ids
    require_right(second)


def _damage(dataset: Dataset, position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample can't be read, by itself or with others."""
    read = Dataset.read_here

    def damaged(self: Dataset, array: str, at: int, *rest: Any, **more: Any) -> None:
        if at == position:
            raise CorruptionError("chunk_corrupt", "as asked", url=self.url)
        read(self, array, at, *rest, **more)

    monkeypatch.setattr(Dataset, "read_here", damaged)
    monkeypatch.setattr(Together, "stored", lambda *_: None)


def test_waiting_for_the_consumer_is_not_waiting_for_data(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = ImitatedDevice()
    loader = _loader(dataset, device, monkeypatch)
    handed = sum(1 for _ in loader)
    # The device says a quarter of a second a batch, and all but the last two have surely passed.
    assert loader.metrics.stalled == 0.25 * (handed - 2)
    assert loader.metrics.waited < loader.metrics.seconds


def test_memory_waits_for_every_copy_that_was_told() -> None:
    class Work:
        waited = 0

        def synchronize(self) -> None:
            self.waited += 1

    buffers, work = HostBuffers((2, 4), "float16"), Work()
    lent = buffers.take()
    buffers.copying(torch.from_numpy(lent), work)
    del lent
    assert not work.waited
    assert buffers.take() is not None
    assert (work.waited, buffers.made) == (1, 1)


def test_devices_that_can_not_be_are_refused() -> None:
    assert device_of(None) is None
    assert device_of("cpu") == torch.device("cpu")
    for wrong in ("gpu", "meta", f"cuda:{torch.cuda.device_count()}"):
        with pytest.raises(InputError, match="device is"):
            device_of(wrong)
