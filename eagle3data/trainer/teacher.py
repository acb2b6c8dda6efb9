"""The teacher: what the target itself says next, from its final-layer states, never [T, V] whole.

The draft proposes tokens of its own, smaller vocabulary, but is judged against the target's
full distribution: a teacher renormalised over the draft vocabulary hides the mass outside it
and overstates acceptance. So one chunked pass over the full vocabulary keeps three things a
position: the argmax, the log-sum-exp, and the draft vocabulary's logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from eagle3data.storage.model_weights import TargetHead
from eagle3data.trainer.compiling import compiled

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Size of one chunk's float32 logits: fits caches on a CPU, fills a GPU's matrix units."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """The target's next-token distribution at K positions.

    Attributes:
        draft_logits: `[K, Vd]` float32, the target's logits of the draft vocabulary.
        log_normaliser: `[K]` float32, log-sum-exp over the FULL vocabulary.
        argmax: `[K]` int64, the target's greedy token, as a target id.
    """

    draft_logits: Tensor
    log_normaliser: Tensor
    argmax: Tensor


def rows_per_chunk(device: torch.device, columns: int) -> int:
    """Rows of float32 logits, `columns` wide, that are held at a time."""
    return max(1, CHUNK_BYTES.get(device.type, CHUNK_BYTES["cuda"]) // (4 * columns))


@torch.no_grad()
def teach(
    head: TargetHead,
    states: Tensor,
    draft_ids: Tensor,
    *,
    post_norm: bool = False,
    compile: bool = False,  # noqa: A002
) -> Teacher:
    """Run the target's head over final-layer states.

    The matrix product is done in the dtype of `head.lm_head`, as the target itself does it;
    everything after it in float32.

    Args:
        head: the target's final norm and lm_head.
        states: `[K, H]`, any float dtype, of the positions whose teacher is used.
        draft_ids: `[Vd]` int64, the draft vocabulary as target ids.
        post_norm: the states already carry the final norm.
        compile: compile what follows the product.
    """
    draft_logits = states.new_empty((len(states), len(draft_ids)), dtype=torch.float32)
    log_normaliser = states.new_empty(len(states), dtype=torch.float32)
    argmax = states.new_empty(len(states), dtype=torch.int64)
    rows = rows_per_chunk(states.device, head.vocab_size)
    for start in range(0, len(states), rows):
        chunk = slice(start, start + rows)
        normed = states[chunk].float() if post_norm else head.normed(states[chunk])
        products = normed.to(head.lm_head.dtype) @ head.lm_head.T  # [<=rows, V]
        found = compiled(_summarise, compile)(products, draft_ids, head)
        draft_logits[chunk], log_normaliser[chunk], argmax[chunk] = found
    return Teacher(draft_logits=draft_logits, log_normaliser=log_normaliser, argmax=argmax)


def _summarise(
    products: Tensor, draft_ids: Tensor, head: TargetHead
) -> tuple[Tensor, Tensor, Tensor]:
    """Draft logits, log-sum-exp and argmax of products `[rows, V]`; they are overwritten."""
    logits = head.finished(products.float())
    highest, argmax = logits.max(-1)
    picked = logits.index_select(1, draft_ids)
    log_sums = logits.sub_(highest[:, None]).exp_().sum(-1).log_() + highest
    return picked, log_sums, argmax
