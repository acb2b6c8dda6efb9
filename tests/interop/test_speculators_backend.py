"""speculators' backend over a data set: rows, order and refusals; with theirs where it is there.

Without the library an imitation of its interface stands in, and what only theirs can prove is
reported as not proven.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import shutil
import sys
from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eagle3data.interop import write_speculators
from eagle3data.interop.training_order import TrainingOrder
from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.schema.errors import CorruptionError, InputError, MismatchError
from eagle3data.schema.layers import NormState
from eagle3data.schema.manifest import Manifest, StorageDtype
from tests.support import random_samples, small_manifest, write_set

MODULE = "eagle3data.interop.speculators_backend"
INSTALLED = importlib.util.find_spec("hs_connectors") is not None
LAYERS = [2, 6, 9]
Rows = tuple[Dataset, Path]


class _Transfer(ABC):
    """As hs_connectors 0.9.0 declares it."""

    @abstractmethod
    def get_cached(self, file_idx: int) -> Any: ...

    @abstractmethod
    def get_generated(self, hs_transfer_params: dict[str, Any]) -> Any: ...


class _Backend:
    registry: ClassVar[dict[str, type]] = {}

    @classmethod
    def register(cls, name: str) -> Callable[[type], type]:
        def keep(backend: type) -> type:
            cls.registry[name] = backend
            return backend

        return keep


@pytest.fixture(scope="module")
def backend() -> Iterator[ModuleType]:
    if INSTALLED:
        yield importlib.import_module(MODULE)
        return
    imitation: Any = ModuleType("hs_connectors")
    imitation.HiddenStatesBackend, imitation.HiddenStatesTransfer = _Backend, _Transfer
    sys.modules["hs_connectors"] = imitation
    yield importlib.import_module(MODULE)
    del sys.modules["hs_connectors"], sys.modules[MODULE]


def _manifest(dtype: StorageDtype = StorageDtype.FLOAT16) -> Manifest:
    manifest = small_manifest(storage_dtype=dtype)
    capture = manifest.capture.model_copy(update={"norm_state": NormState.PRE})
    return manifest.model_copy(update={"capture": capture})


def _rows(folder: Path, dtype: StorageDtype = StorageDtype.FLOAT16) -> Rows:
    manifest = _manifest(dtype)
    samples = random_samples(12, manifest)
    if dtype is StorageDtype.BFLOAT16:
        for sample in samples:
            sample.hidden_states = {
                layer: (states.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
                for layer, states in sample.hidden_states.items()
            }
    dataset = open_dataset(write_set(folder / "set", samples, manifest))
    write_speculators.write(dataset, folder / "rows", states=False)
    return dataset, folder / "rows"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    _rows(folder)
    return folder


@pytest.fixture
def rows(made: Path, tmp_path: Path) -> Rows:
    """A copy, to be written to or damaged."""
    shutil.copytree(made, tmp_path / "copy")
    return open_dataset(str(tmp_path / "copy" / "set")), tmp_path / "copy" / "rows"


def _settings(dataset: Dataset, **changed: Any) -> Namespace:
    settings = {
        "eagle3data_url": dataset.url,
        "eagle3data_cache": None,
        "eagle3data_cache_bytes": None,
        "target_layer_ids": LAYERS,
        "speculator_type": "eagle3",
    }
    return Namespace(**{**settings, **changed})


def _transfer(backend: ModuleType, rows: Rows, **changed: Any) -> Any:
    dataset, folder = rows
    return backend.DataSetBackend.from_train_args(_settings(dataset, **changed), str(folder))


@pytest.mark.parametrize("dtype", list(StorageDtype))
def test_a_row_is_what_their_file_of_it_holds(
    backend: ModuleType, tmp_path: Path, dtype: StorageDtype
) -> None:
    dataset, folder = _rows(tmp_path, dtype)
    write_speculators.write(dataset, folder)  # with the states this time, beside the rows
    transfer = _transfer(backend, (dataset, folder))
    for row in range(len(dataset)):
        found = transfer.get_cached(row)
        wanted = load_file(folder / "hidden_states" / f"hs_{row}.safetensors")
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name].view(torch.int16), tensor.view(torch.int16))


def test_samples_of_train_come_first(rows: Rows) -> None:
    order = TrainingOrder(rows[0])
    splits = order.index["split"].to_pylist()
    assert splits == ["train"] * 9 + ["eval"] * 3
    assert order.train_ratio is not None
    assert int(len(order) * order.train_ratio) == 9
    assert list(order.positions) == [1, 2, 3, 5, 6, 7, 9, 10, 11, 0, 4, 8]


def test_no_share_where_nothing_is_held_out(tmp_path: Path) -> None:
    manifest = _manifest()
    samples = random_samples(12, manifest)
    kept = [sample for sample in samples if sample.split == "train"]
    assert TrainingOrder(open_dataset(write_set(tmp_path, kept, manifest))).train_ratio is None


def test_each_process_opens_the_set_itself(backend: ModuleType, rows: Rows) -> None:
    transfer = _transfer(backend, rows)
    first = transfer.get_cached(0)
    assert transfer._opened is not None
    sent = pickle.loads(pickle.dumps(transfer))
    assert sent._opened is None
    assert torch.equal(sent.get_cached(0)["hidden_states"], first["hidden_states"])


def test_rows_of_another_set_are_refused(backend: ModuleType, rows: Rows, tmp_path: Path) -> None:
    dataset, folder = rows
    manifest = _manifest()
    grown = open_dataset(write_set(tmp_path / "grown", random_samples(13, manifest), manifest))
    with pytest.raises(MismatchError, match="has other rows"):
        _transfer(backend, (grown, folder))
    (folder / "eagle3data.json").unlink()
    with pytest.raises(InputError, match="holds no rows of a data set"):
        _transfer(backend, (dataset, folder))


def test_a_set_that_grew_meanwhile(backend: ModuleType, rows: Rows) -> None:
    dataset, _ = rows
    transfer = backend.DataSetTransfer(dataset.url, "sha256:before")
    with pytest.raises(MismatchError, match="those of this training"):
        transfer.get_cached(0)


@pytest.mark.parametrize("asked", [[1, 5, 8], [9, 6, 2]])
def test_other_layers_than_the_draft_is_to_read(
    backend: ModuleType, rows: Rows, asked: list[int]
) -> None:
    with pytest.raises(MismatchError, match="--target-layer-ids 2 6 9"):
        _transfer(backend, rows, target_layer_ids=asked)


def test_their_default_layers_are_looked_at_too(backend: ModuleType, rows: Rows) -> None:
    _transfer(backend, rows, target_layer_ids=None)  # [2, 12 // 2, 12 - 3]: those of the set
    manifest = rows[0].manifest
    deeper = manifest.target.model_copy(update={"num_hidden_layers": 16})
    with pytest.raises(MismatchError, match="read layers"):
        backend._check_layers(
            manifest.model_copy(update={"target": deeper}),
            _settings(rows[0], target_layer_ids=None),
        )


def test_damage_is_an_error_and_not_a_missing_row(backend: ModuleType, rows: Rows) -> None:
    transfer = _transfer(backend, rows)
    shard = next(Path(rows[0].url).glob("hidden_states/6/c/*/*"))
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    damaged = []
    for row in range(len(rows[0])):
        try:
            transfer.get_cached(row)
        except CorruptionError as error:
            damaged.append(error.kind)
    assert damaged
    assert set(damaged) == {"chunk_corrupt"}


def test_what_it_does_not_do_is_said(backend: ModuleType, rows: Rows) -> None:
    transfer = _transfer(backend, rows)
    with pytest.raises(InputError, match="--on-missing raise"):
        transfer.get_generated({"handle": "x"})
    with pytest.raises(InputError, match="12 rows"):
        transfer.get_cached(12)
    with pytest.raises(InputError, match="starts no vLLM"):
        backend.DataSetBackend.build_kv_transfer_config(Namespace())
    with pytest.raises(InputError, match="imported too late"):
        backend.DataSetBackend.from_train_args(Namespace(), "nowhere")
    parser = ArgumentParser()
    backend.DataSetBackend.add_train_args(parser)
    assert parser.parse_args(["--eagle3data-url", "x"]).eagle3data_url == "x"


@pytest.mark.skipif(not INSTALLED, reason="speculators is not installed (docs/speculators.md)")
def test_their_data_set_gives_the_same_either_way(backend: ModuleType, rows: Rows) -> None:
    """Item by item, and packed by their own collation: through the backend and from files."""
    from hs_connectors import HiddenStatesBackend
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.data import ArrowDataset, CollateFn

    dataset, folder = rows
    write_speculators.write(dataset, folder)
    assert HiddenStatesBackend.registry["eagle3data"] is backend.DataSetBackend
    for split in ("train", "val"):
        ratio = TrainingOrder(dataset).train_ratio
        common: dict[str, Any] = {
            "max_len": 512,
            "datapath": folder,
            "on_missing": "raise",
            "train_ratio": ratio,
            "split": split,
        }
        ours = ArrowDataset(transfer=_transfer(backend, rows), **common)
        theirs = ArrowDataset(**common)
        assert len(ours) == len(theirs) == (9 if split == "train" else 3)
        assert ours.approx_lengths == theirs.approx_lengths
        collate = CollateFn(512, dataset.manifest.hidden_size, preprocess=shift_batch)
        items = [(ours[row], theirs[row]) for row in range(len(ours))]
        packs = [collate(one) for one in zip(*items, strict=True)]
        for mine, original in [*items, packs]:
            assert mine.keys() == original.keys()
            for name, tensor in original.items():
                if isinstance(tensor, torch.Tensor):
                    assert mine[name].dtype == tensor.dtype
                    assert torch.equal(mine[name], tensor), name
                else:
                    assert mine[name] == tensor
