"""Small things that the trainer's tests build: a draft, a pack, a target folder, a data set."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

import eagle3data as e3
from eagle3data.readers.batch import Batch
from eagle3data.schema.layers import Numbering
from eagle3data.trainer.draft import Draft, DraftConfig

HIDDEN, LAYERS, VOCAB = 32, 6, 97
AUX, FINAL = [2, 3, 4], 6
SETTINGS = [
    "data.token_budget=40",
    "model.draft_vocab_size=30",
    "optimizer.learning_rate=3e-3",
    "train.ttt_steps=2",
    "train.device=cpu",
    "train.autocast=float32",
    "train.eval_every=4",
    "train.save_every=3",
]
"""Of a run over `data_set` that is over in seconds."""


def config(**changes: Any) -> DraftConfig:
    return DraftConfig(
        **{
            "hidden_size": HIDDEN,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": VOCAB,
            "draft_vocab_size": 40,
            "initializer_range": 0.2,
            **changes,
        }
    )


def draft(seed: int = 0, **changes: Any) -> Draft:
    """A draft whose norm weights are not all alike."""
    torch.manual_seed(seed)
    made = Draft(config(**changes), torch.randn(VOCAB, HIDDEN))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def pack(lengths: list[int], budget: int, seed: int = 0) -> Batch:
    """Random documents of these lengths in a batch of `budget` rows."""
    generator = torch.Generator().manual_seed(seed)
    batch = Batch(
        hidden_states=torch.zeros(4, budget, HIDDEN, dtype=torch.float16),
        layers=[*AUX, FINAL],
        input_ids=torch.zeros(budget, dtype=torch.int32),
        loss_mask=torch.zeros(budget, dtype=torch.uint8),
        position_ids=torch.zeros(budget, dtype=torch.int32),
        document_ids=torch.full((budget,), -1, dtype=torch.int32),
        cu_seqlens=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        sample_ids=[f"s{number}" for number in range(len(lengths))],
    )
    start = 0
    for number, length in enumerate(lengths):
        rows = slice(start, start + length)
        batch.hidden_states[:, rows] = torch.randn(4, length, HIDDEN, generator=generator).half()
        batch.input_ids[rows] = torch.randint(VOCAB, (length,), generator=generator).int()
        batch.loss_mask[rows] = (torch.rand(length, generator=generator) < 0.7).byte()
        batch.position_ids[rows] = torch.arange(length).int()
        batch.document_ids[rows] = number
        start += length
    return batch


def unpacked(batch: Batch) -> list[Batch]:
    """Each document of a pack as a batch of its own."""
    bounds = batch.cu_seqlens.tolist()
    alone = []
    for start, end in pairwise(bounds):
        rows = slice(start, end)
        alone.append(
            Batch(
                hidden_states=batch.hidden_states[:, rows],
                layers=batch.layers,
                input_ids=batch.input_ids[rows],
                loss_mask=batch.loss_mask[rows],
                position_ids=batch.position_ids[rows],
                document_ids=torch.zeros(end - start, dtype=torch.int32),
                cu_seqlens=torch.tensor([0, end - start], dtype=torch.int32),
                sample_ids=["alone"],
            )
        )
    return alone


def target_folder(folder: Path) -> Path:
    """A model folder with what the trainer reads of a target: config, embeddings, norm, lm_head."""
    folder.mkdir()
    torch.manual_seed(7)
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN),
        "model.norm.weight": 1 + 0.1 * torch.randn(HIDDEN),
        "lm_head.weight": torch.randn(VOCAB, HIDDEN),
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def data_set(
    url: Path, target: str | Path, *, layers: list[int] | None = None, samples: int = 24
) -> Path:
    """States that can be learned from: every layer's are a function of the token."""
    manifest = e3.Manifest.for_model(
        str(target), layers=layers or [*AUX, FINAL], numbering=Numbering.CANONICAL
    )
    random = np.random.default_rng(0)
    table = random.standard_normal((VOCAB, HIDDEN))
    with e3.DatasetWriter.create(str(url), manifest) as writer:
        for number in range(samples):
            length = int(random.integers(8, 28))
            ids = random.integers(0, 20, length)
            states = {
                layer: (table[ids] * (1 + 0.1 * layer)).astype(np.float16)
                for layer in manifest.layers
            }
            mask = np.ones(length, dtype=np.uint8)
            mask[: length // 3] = 0
            writer.append(
                e3.Sample(
                    hidden_states=states,
                    input_ids=ids,
                    loss_mask=mask,
                    sample_id=f"s{number}",
                    split="eval" if number % 6 == 0 else "train",
                )
            )
    return url
