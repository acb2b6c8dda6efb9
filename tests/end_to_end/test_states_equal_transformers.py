"""What `extract` stored is what transformers computes, one sample at a time and unbatched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
import zarr

from benchmarks.vllm_states import reference
from eagle3data import Dataset, open_dataset
from tests.support import Command

LAYERS = [2, 15, 27, 30]


def _load(folder: Path, dtype: torch.dtype) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def _some(dataset: Dataset) -> list[int]:
    """Samples of very different lengths: shortest, longest and what lies between."""
    order = np.argsort(dataset.index["length"].to_numpy())
    return [int(order[i]) for i in np.linspace(0, len(order) - 1, 6).astype(int)]


@pytest.fixture(scope="session")
def float32_states(
    smollm2: Path, prompts: Path, command: Command, tmp_path_factory: pytest.TempPathFactory
) -> str:
    url = tmp_path_factory.mktemp("float32") / "set"
    words = ["extract", prompts, "--model", smollm2, "--out", url, "--compute-dtype", "float32"]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    return str(url)


def test_float32_on_every_layer(smollm2: Path, float32_states: str) -> None:
    dataset, model = open_dataset(float32_states), _load(smollm2, torch.float32)
    for position in _some(dataset):
        sample = dataset[position]
        for layer, expected in reference(model, sample, LAYERS).items():
            stored = sample.hidden_states[layer].astype(np.float32)
            error = np.linalg.norm(stored - expected) / np.linalg.norm(expected)
            print(f"float32, {len(sample)} tokens, layer {layer}: relative error {error:.1e}")
            assert error < 1e-3, (sample.sample_id, layer, error)


def test_bfloat16_by_quantiles_of_rows(smollm2: Path, states: str) -> None:
    dataset, model = open_dataset(states), _load(smollm2, torch.bfloat16)
    errors: dict[int, list[npt.NDArray[np.float32]]] = {layer: [] for layer in LAYERS}
    for position in _some(dataset):
        sample = dataset[position]
        for layer, expected in reference(model, sample, LAYERS).items():
            stored = sample.hidden_states[layer].astype(np.float32)
            norms = np.linalg.norm(expected, axis=1)
            errors[layer].append(np.linalg.norm(stored - expected, axis=1) / norms)
    for layer, rows in errors.items():
        median, most = np.quantile(np.concatenate(rows), [0.5, 0.9])
        print(f"bfloat16, layer {layer}: rows' error, median {median:.4f}, 90 % {most:.4f}")
        assert median < 0.02, (layer, median)
        assert most < 0.05, (layer, most)


def test_the_witness_is_the_engines_own(smollm2: Path, float32_states: str) -> None:
    """The model's real logits name the witness; so does norm + lm_head of the stored state."""
    dataset, model = open_dataset(float32_states), _load(smollm2, torch.float32)
    for position in _some(dataset):
        sample = dataset[position]
        with torch.inference_mode():
            ids = torch.from_numpy(sample.input_ids.astype(np.int64))[None]
            engine = model(input_ids=ids).logits[0, -1].log_softmax(0)
            last = torch.from_numpy(sample.hidden_states[30][-1:].astype(np.float32))
            stored = model.lm_head(model.model.norm(last))[0].log_softmax(0)
        assert sample.witness_token == int(engine.argmax()) == int(stored.argmax())
        assert sample.witness_logprob is not None
        assert abs(sample.witness_logprob - float(engine.max())) < 1e-3
        assert abs(sample.witness_logprob - float(stored.max())) < 1e-2


def test_stock_zarr_reads_the_same(states: str) -> None:
    dataset = open_dataset(states)
    group: Any = zarr.open_group(states, mode="r")
    for row in range(len(dataset)):
        offset, length = (dataset.index[n][row].as_py() for n in ("token_offset", "length"))
        sample, at = dataset[row], slice(offset, offset + length)
        for layer in LAYERS:
            np.testing.assert_array_equal(
                group[f"hidden_states/{layer}"][at], sample.hidden_states[layer]
            )
        np.testing.assert_array_equal(group["input_ids"][at], sample.input_ids)
        np.testing.assert_array_equal(group["loss_mask"][at], sample.loss_mask)


def test_the_index_holds_the_prompts(states: str, prompts: Path) -> None:
    from eagle3data.extractor.prompts import read_prompts

    index, table = open_dataset(states).index, read_prompts(prompts).table
    for column in ("sample_id", "input_ids", "loss_mask", "source", "split"):
        assert index[column].to_pylist() == table[column].to_pylist()
