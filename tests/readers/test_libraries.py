"""What others save and restore a loader with: each through the real library, in mid-epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from eagle3data import Batch, Dataset, StreamingLoader, open_dataset
from eagle3data.schema.errors import InputError
from tests.support import random_samples, small_manifest, write_set

STEPS = 7
MANIFEST = small_manifest(shard_tokens=256)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    url = tmp_path_factory.mktemp("libraries") / "set"
    return open_dataset(write_set(url, random_samples(120, MANIFEST, longest=60), MANIFEST))


@pytest.fixture
def fresh(dataset: Dataset) -> Callable[[], StreamingLoader]:
    """A loader as a new process makes it."""
    return lambda: StreamingLoader(dataset, token_budget=64, seed=2, layers=[2], threads=2)


@pytest.fixture
def whole(fresh: Callable[[], StreamingLoader]) -> list[list[str]]:
    """Two epochs that nobody interrupts."""
    loader = fresh()
    return _names([*loader, *loader])


def _names(batches: Iterable[Batch]) -> list[list[str]]:
    return [batch.sample_ids for batch in batches]


def test_torchdata(fresh: Callable[[], StreamingLoader], whole: list[list[str]]) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def wrapped(**settings: Any) -> Any:
        return StatefulDataLoader(fresh(), batch_size=None, **settings)

    first = wrapped()
    stream: Iterator[Batch] = iter(first)
    assert _names(islice(stream, STEPS)) == whole[:STEPS]
    again = wrapped()
    again.load_state_dict(first.state_dict())
    rest = _names(again)
    assert rest == whole[STEPS : STEPS + len(rest)]
    assert _names(again) == whole[STEPS + len(rest) :]
    with pytest.raises(InputError, match="DataLoader worker"):
        next(iter(wrapped(num_workers=1)))


def test_torch_distributed_checkpoint(
    fresh: Callable[[], StreamingLoader], whole: list[list[str]], tmp_path: Path
) -> None:
    first = fresh()
    assert _names(islice(first, STEPS)) == whole[:STEPS]
    save({"loader": first}, checkpoint_id=tmp_path / "saved")
    again = fresh()
    load({"loader": again}, checkpoint_id=tmp_path / "saved")
    assert _names([*again, *again]) == whole[STEPS:]


def test_torch_distributed_checkpoint_of_a_followed_set(dataset: Dataset, tmp_path: Path) -> None:
    def fresh() -> StreamingLoader:
        return StreamingLoader(dataset, token_budget=64, seed=2, layers=[2], follow=True)

    whole = _names(fresh())
    first = fresh()
    assert _names(islice(first, STEPS)) == whole[:STEPS]
    save({"loader": first}, checkpoint_id=tmp_path / "saved")
    again = fresh()
    load({"loader": again}, checkpoint_id=tmp_path / "saved")
    assert _names(again) == whole[STEPS:]


def test_accelerate(
    fresh: Callable[[], StreamingLoader], whole: list[list[str]], tmp_path: Path
) -> None:
    from accelerate import Accelerator

    first = fresh()
    accelerator = Accelerator(cpu=True)
    accelerator.register_for_checkpointing(first)
    assert _names(islice(first, STEPS)) == whole[:STEPS]
    accelerator.save_state(str(tmp_path / "saved"))
    again = fresh()
    other = Accelerator(cpu=True)
    other.register_for_checkpointing(again)
    other.load_state(str(tmp_path / "saved"))
    assert _names([*again, *again]) == whole[STEPS:]


def test_lightning(
    fresh: Callable[[], StreamingLoader], whole: list[list[str]], tmp_path: Path
) -> None:
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))
            self.seen: list[list[str]] = []

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            self.seen.append(batch.sample_ids)
            return self.scale * batch.hidden_states.float().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fitted(steps: int, saved: Path | None) -> tuple[Model, Any]:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Model()
        trainer.fit(model, fresh(), ckpt_path=saved, weights_only=False)
        return model, trainer

    first, trainer = fitted(STEPS, None)
    assert first.seen == whole[:STEPS]
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    again, _ = fitted(len(whole), tmp_path / "saved.ckpt")
    assert again.seen == whole[STEPS:]
