"""Sets written as others' files and read back: equal to the bit, whole files only, resumable."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open

from eagle3data.interop import write_specforge, write_speculators
from eagle3data.interop.training_order import TrainingOrder
from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState
from eagle3data.schema.manifest import Manifest, StorageDtype
from tests.interop.reading import opened
from tests.support import HIDDEN, random_samples, small_manifest, write_set


def _manifest(norm: NormState, dtype: StorageDtype = StorageDtype.FLOAT16) -> Manifest:
    manifest = small_manifest(storage_dtype=dtype)
    capture = manifest.capture.model_copy(update={"norm_state": norm})
    return manifest.model_copy(update={"capture": capture})


def _set(folder: Path, norm: NormState, dtype: StorageDtype = StorageDtype.FLOAT16) -> Dataset:
    manifest = _manifest(norm, dtype)
    samples = random_samples(12, manifest)
    if dtype is StorageDtype.BFLOAT16:
        for sample in samples:
            sample.hidden_states = {
                layer: (states.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
                for layer, states in sample.hidden_states.items()
            }
    return open_dataset(write_set(folder, samples, manifest))


def _check_equal(writer: ModuleType, dataset: Dataset, folder: Path) -> None:
    source = opened(folder, hidden_size=HIDDEN)
    entries = source.entries()
    assert len(entries) == len(dataset)
    rows = TrainingOrder(dataset) if writer is write_speculators else dataset
    for number, entry in enumerate(entries):
        sample = rows[number]
        tokens = source.tokens(entry)
        assert np.array_equal(tokens.input_ids, sample.input_ids)
        assert tokens.loss_mask is not None
        assert np.array_equal(tokens.loss_mask, sample.loss_mask)
        wanted = list(sample.hidden_states.values())
        if writer is write_specforge:
            wanted = [_in_bfloat16(states) for states in wanted]
        for got, states in zip(source.states(entry), wanted, strict=True):
            assert got.dtype == states.dtype
            assert np.array_equal(got, states)


def _in_bfloat16(states: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """By its bits; SpecForge's head multiplies nothing else."""
    if states.dtype == np.uint16:
        return states
    rounded = torch.from_numpy(np.ascontiguousarray(states)).to(torch.bfloat16)
    return rounded.view(torch.uint16).numpy()


WRITERS = [(write_speculators, NormState.PRE), (write_specforge, NormState.POST)]


@pytest.mark.parametrize("dtype", list(StorageDtype))
@pytest.mark.parametrize(("writer", "norm"), WRITERS)
def test_round_trip(
    tmp_path: Path, writer: ModuleType, norm: NormState, dtype: StorageDtype
) -> None:
    dataset = _set(tmp_path / "set", norm, dtype)
    told: list[int] = []
    assert writer.write(dataset, tmp_path / "out", threads=2, progress=told.append) == 12
    assert told[-1] == 12
    _check_equal(writer, dataset, tmp_path / "out")
    assert opened(tmp_path / "out", hidden_size=HIDDEN).facts().norm_state is norm
    assert not (tmp_path / "out" / ".tmp").exists()


@pytest.mark.parametrize(("writer", "norm"), WRITERS)
def test_only_what_is_missing_is_written_again(
    tmp_path: Path, writer: ModuleType, norm: NormState
) -> None:
    dataset, folder = _set(tmp_path / "set", norm), tmp_path / "out"
    writer.write(dataset, folder)
    files = sorted(path for path in folder.rglob("*_*") if path.is_file())
    files = [path for path in files if path.name.startswith(("hs_", "data_"))]
    kept = files[0].stat().st_mtime_ns
    for path in files[1:4]:
        path.unlink()
    assert writer.write(dataset, folder) == 3
    assert files[0].stat().st_mtime_ns == kept
    _check_equal(writer, dataset, folder)


@pytest.mark.parametrize(("writer", "norm"), WRITERS)
def test_a_folder_of_something_else(tmp_path: Path, writer: ModuleType, norm: NormState) -> None:
    dataset, folder = _set(tmp_path / "set", norm), tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="files that no export left"):
        writer.write(dataset, folder)
    (folder / "notes.txt").unlink()
    writer.write(dataset, folder)
    manifest = _manifest(norm)
    other = open_dataset(write_set(tmp_path / "other", random_samples(3, manifest), manifest))
    with pytest.raises(InputError, match="export of another data set"):
        writer.write(other, folder)


def test_speculators_needs_the_final_layer_before_its_norm(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="after its norm"):
        write_speculators.write(_set(tmp_path / "set", NormState.POST), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_speculators_files_as_their_library_reads_them(tmp_path: Path) -> None:
    dataset = _set(tmp_path / "set", NormState.PRE, StorageDtype.BFLOAT16)
    write_speculators.write(dataset, tmp_path / "out")
    place = tmp_path / "out" / "hidden_states" / "hs_3.safetensors"
    with safe_open(place, "pt") as file:
        states, ids = file.get_tensor("hidden_states"), file.get_tensor("token_ids")
    assert states.dtype == torch.bfloat16
    assert ids.dtype == torch.int64
    wanted = np.stack(list(TrainingOrder(dataset)[3].hidden_states.values()), axis=1)
    assert np.array_equal(states.view(torch.uint16).numpy(), wanted)
    rows = [one for one in dataset if one.split == "train"]  # those held out choose no vocabulary
    trained = np.concatenate([one.input_ids[one.loss_mask == 1] for one in rows])
    counts = torch.load(tmp_path / "out" / "token_freq.pt", weights_only=True)
    tokens, times = np.unique(trained, return_counts=True)
    assert counts == dict(zip(tokens.tolist(), times.tolist(), strict=True))


def test_specforge_gets_the_norm_of_a_set_that_is_before_it(tmp_path: Path) -> None:
    dataset = _set(tmp_path / "set", NormState.PRE)
    with pytest.raises(InputError, match="give the target's norm"):
        write_specforge.write(dataset, tmp_path / "out")

    def halved(states: Any) -> Any:
        return states / 2

    write_specforge.write(dataset, tmp_path / "out", final_norm=halved)
    source = opened(tmp_path / "out", hidden_size=HIDDEN)
    *aux, final = source.states(source.entries()[5])
    *wanted, last = dataset[5].hidden_states.values()
    assert np.array_equal(final, _in_bfloat16(last / 2))
    for one, other in zip(aux, wanted, strict=True):
        assert np.array_equal(one, _in_bfloat16(other))
