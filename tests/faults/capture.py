"""Real states: forward passes of a model with the residual streams that hooks see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.writers.dataset_writer import DatasetWriter

LAYERS = [2, 15, 27, 30]
ONE_SHORT = 29
AXIS = TokenAxis(shard_tokens=1024, chunk_tokens=16)
_BATCH = 32
_BATCH_TOKENS = 1024

Captured = dict[str, Any]
"""Of one sample: `ids`, `mask`, `states` by layer, `normed` (the final layer after the norm),
`token` and `logprob` (the witness)."""


def capture(
    model: Any, texts: list[list[int]], masks: list[list[int]], layers: list[int]
) -> list[Captured]:
    """Run a model over token ids, some samples of about a length at a time.

    Args:
        model: of transformers, with `model.layers` and `model.norm`.
        texts: token ids of each sample.
        masks: loss mask of each.
        layers: canonical ids; the last is the final one.
    """
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    found: dict[int, Captured] = {}
    while order:
        size = min(_BATCH, max(1, _BATCH_TOKENS // len(texts[order[-1]])))
        batch, order = order[-size:], order[:-size]
        rows = _forward(model, [texts[at] for at in batch], layers)
        for at, row in zip(batch, rows, strict=True):
            found[at] = {"ids": texts[at], "mask": masks[at], **row}
    return [found[at] for at in range(len(texts))]


def _forward(model: Any, texts: list[list[int]], layers: list[int]) -> list[Captured]:
    """One pass, padded on the right: a causal model's rows don't see what follows them."""
    import torch

    longest = max(len(text) for text in texts)
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    seen: dict[int, Any] = {}

    def keep(layer: int) -> Any:
        return lambda _, inputs: seen.__setitem__(layer, inputs[0].half().numpy())

    count = len(model.model.layers)
    modules = {layer: model.model.layers[layer] for layer in layers if layer < count}
    modules[count] = model.model.norm
    hooks = [module.register_forward_pre_hook(keep(layer)) for layer, module in modules.items()]
    with torch.no_grad():
        output = model.model(ids).last_hidden_state
        last = torch.stack([output[at, len(text) - 1] for at, text in enumerate(texts)])
        logprobs = model.lm_head(last).float().log_softmax(-1)
    for hook in hooks:
        hook.remove()
    found = []
    for at, text in enumerate(texts):
        token = int(logprobs[at].argmax())
        found.append(
            {
                "states": {layer: rows[at, : len(text)].copy() for layer, rows in seen.items()},
                "normed": output[at, : len(text)].half().numpy(),
                "token": token,
                "logprob": float(logprobs[at, token]),
            }
        )
    return found


def write(
    folder: Path,
    model: Path,
    captured: list[Captured],
    *,
    layers: list[int] | None = None,
    names: str = "talk",
    axis: TokenAxis = AXIS,
) -> Path:
    """A data set of captured samples, named `names-00`, `names-01`, ..."""
    layers = layers or LAYERS
    manifest = Manifest.for_model(str(model), layers=layers, axis=axis, engine="transformers")
    with DatasetWriter.create(str(folder), manifest) as writer:
        for number, sample in enumerate(captured):
            writer.append(
                Sample(
                    hidden_states={layer: sample["states"][layer] for layer in layers},
                    input_ids=np.array(sample["ids"]),
                    loss_mask=np.array(sample["mask"]),
                    sample_id=f"{names}-{number:02d}",
                    source=f"texts.py:{number}",
                    witness_token=sample["token"],
                    witness_logprob=sample["logprob"],
                )
            )
    return folder
