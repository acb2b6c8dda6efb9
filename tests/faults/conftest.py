"""A small clean data set of real states, and a fresh copy of it for each fault."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.writers.dataset_writer import DatasetWriter
from tests.faults.stored import StoredSet
from tests.faults.texts import conversations

LAYERS = [2, 15, 27, 30]
AXIS = TokenAxis(shard_tokens=1024, chunk_tokens=16)


@pytest.fixture(scope="session")
def captured(smollm2: Path) -> list[dict[str, Any]]:
    """Ids, mask, states of more layers than a set keeps, and witness of each conversation."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16).eval()
    samples = []
    for messages in conversations():
        prompt = tokenizer.apply_chat_template(
            messages[:1], tokenize=True, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
        ids = whole["input_ids"]
        mask = [int(at >= len(prompt)) for at in range(len(ids))]
        samples.append({"ids": ids, "mask": mask, **run(model, torch.tensor([ids]))})
    return samples


def run(model: Any, ids: Any) -> dict[str, Any]:
    """One forward pass, sample by sample, with the residual streams that hooks see."""
    import torch

    seen: dict[int, Any] = {}

    def keep(layer: int) -> Any:
        return lambda _, inputs: seen.__setitem__(layer, inputs[0][0].half().numpy())

    modules = {layer: model.model.layers[layer] for layer in [*LAYERS[:-1], 29]}
    hooks = [
        module.register_forward_pre_hook(keep(layer))
        for layer, module in {**modules, LAYERS[-1]: model.model.norm}.items()
    ]
    with torch.no_grad():
        output = model.model(ids).last_hidden_state[0]
        logprobs = model.lm_head(output[-1]).float().log_softmax(-1)
    for hook in hooks:
        hook.remove()
    token = int(logprobs.argmax())
    normed = output.half().numpy()
    return {"states": seen, "normed": normed, "token": token, "logprob": float(logprobs[token])}


@pytest.fixture(scope="session")
def clean_folder(
    captured: list[dict[str, Any]], smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The clean data set; tests copy it."""
    folder = tmp_path_factory.mktemp("faults") / "clean"
    manifest = Manifest.for_model(str(smollm2), layers=LAYERS, axis=AXIS, engine="transformers")
    with DatasetWriter.create(str(folder), manifest) as writer:
        for number, sample in enumerate(captured):
            writer.append(
                Sample(
                    hidden_states={layer: sample["states"][layer] for layer in LAYERS},
                    input_ids=np.array(sample["ids"]),
                    loss_mask=np.array(sample["mask"]),
                    sample_id=f"talk-{number:02d}",
                    source=f"texts.py:{number}",
                    witness_token=sample["token"],
                    witness_logprob=sample["logprob"],
                )
            )
    return folder


@pytest.fixture
def stored(clean_folder: Path, tmp_path: Path) -> StoredSet:
    """A copy to be damaged."""
    shutil.copytree(clean_folder, tmp_path / "set")
    return StoredSet(tmp_path / "set")
