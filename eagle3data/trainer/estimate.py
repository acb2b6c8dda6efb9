"""What a run would be, before anything is computed: sizes, memory, steps."""

from __future__ import annotations

from typing import Any

import torch

from eagle3data.trainer.config import flat
from eagle3data.trainer.draft import DraftConfig
from eagle3data.trainer.inputs import Inputs
from eagle3data.trainer.loop import count_steps
from eagle3data.trainer.teacher import rows_per_chunk
from eagle3data.trainer.ttt import Speed


def estimate(inputs: Inputs) -> dict[str, Any]:
    """Sizes in bytes, counts, and every setting."""
    parameters = sum(p.numel() for p in inputs.draft.parameters())
    trained = sum(p.numel() for p in inputs.draft.parameters() if p.requires_grad)
    settings, shape = inputs.config.train, inputs.draft.config
    budget = inputs.config.data.token_budget
    return {
        "draft": shape.model_dump(mode="json"),
        "parameters": parameters,
        "aux_layers": inputs.description.aux_layers,
        "samples": sum(len(one) for one in inputs.sets),
        "total_steps": count_steps(inputs),
        "tokens_per_step": budget * settings.accumulation,
        # Parameters, and of those that train gradients and AdamW's two moments, all float32.
        "state_bytes": 4 * parameters + 12 * trained,
        "target_bytes": _bytes(inputs.head.lm_head) + _bytes(inputs.draft.embeddings),
        "activation_bytes": activation_bytes(shape, budget, settings.ttt_steps, inputs.speed),
        "logits_bytes": logits_bytes(shape, budget, inputs.device),
        "device": inputs.device.type,
        "products": str(inputs.speed.dtype).removeprefix("torch."),
        "settings": flat(inputs.config),
    }


def activation_bytes(shape: DraftConfig, budget: int, steps: int, speed: Speed) -> int:
    """What the unrolled steps keep for their gradients, to within some tens of per cent.

    A step keeps its normed inputs, queries, keys, values, what attention gave, and the MLP's two
    halves with their product; one that is computed again keeps its input, keys and values.
    """
    item = speed.dtype.itemsize
    query = shape.num_attention_heads * shape.head_dim
    key = shape.num_key_value_heads * shape.head_dim
    whole = 4 * shape.hidden_size + 2 * query + 2 * key + 3 * shape.intermediate_size
    short = shape.hidden_size + 2 * key
    rows = (steps - 1) * short + whole if speed.checkpoint else steps * whole
    return budget * item * rows


def logits_bytes(shape: DraftConfig, budget: int, device: torch.device) -> int:
    """The teacher's logits of a pack, and a chunk of the draft's with its gradient (float32)."""
    chunk = min(budget, rows_per_chunk(device, shape.draft_vocab_size))
    return 4 * shape.draft_vocab_size * (budget + 3 * chunk)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
