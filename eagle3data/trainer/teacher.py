"""The teacher: what the target itself says next, from its final-layer states, never [T, V] whole.

The draft proposes tokens of its own, smaller vocabulary, but is judged against the target's
full distribution: a teacher renormalised over the draft vocabulary hides the mass outside it
and overstates acceptance. So one chunked pass over the full vocabulary keeps three things a
position: the argmax, the log-sum-exp, and the draft vocabulary's logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from eagle3data.storage.model_weights import TargetHead

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_BYTES = 64 << 20
"""Size of one chunk's float32 logits."""


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

    @cached_property
    def probabilities(self) -> Tensor:
        """`[K, Vd]`, renormalised over the draft vocabulary: what the loss is taken against."""
        return self.draft_logits.softmax(-1)

    @cached_property
    def covered(self) -> Tensor:
        """`[K]`, the share of the target's own distribution that lies in the draft vocabulary."""
        return (self.draft_logits.logsumexp(-1) - self.log_normaliser).exp()


def teach(
    head: TargetHead, states: Tensor, draft_ids: Tensor, *, post_norm: bool = False
) -> Teacher:
    """Run the target's head over final-layer states.

    The matrix product is done in the dtype of `head.lm_head`, as the target itself does it;
    everything after it in float32.

    Args:
        head: the target's final norm and lm_head.
        states: `[K, H]`, any float dtype, of the positions whose teacher is used.
        draft_ids: `[Vd]` int64, the draft vocabulary as target ids.
        post_norm: the states already carry the final norm.
    """
    rows = max(1, CHUNK_BYTES // (4 * head.vocab_size))
    draft_logits = states.new_empty((len(states), len(draft_ids)), dtype=torch.float32)
    log_normaliser = states.new_empty(len(states), dtype=torch.float32)
    argmax = states.new_empty(len(states), dtype=torch.int64)
    with torch.no_grad():
        for start in range(0, len(states), rows):
            chunk = slice(start, start + rows)
            normed = states[chunk].float() if post_norm else head.normed(states[chunk])
            products = (normed.to(head.lm_head.dtype) @ head.lm_head.T).float()
            logits = head.finished(products)  # [<=rows, V]
            highest, argmax[chunk] = logits.max(-1)
            torch.index_select(logits, 1, draft_ids, out=draft_logits[chunk])
            sums = logits.sub_(highest[:, None]).exp_().sum(-1)
            log_normaliser[chunk] = sums.log_() + highest
    return Teacher(draft_logits=draft_logits, log_normaliser=log_normaliser, argmax=argmax)
