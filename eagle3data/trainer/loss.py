"""Losses of a step: the draft's distribution against the teacher's, over the draft vocabulary.

Each returns one value a kept position; the loop averages over kept positions only, so neither
padding nor packing nor the number of micro-batches changes what a step of the optimiser sees.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Loss(StrEnum):
    """Which distance to the teacher is minimised."""

    SOFT_CE = "soft_ce"
    KL = "kl"


def soft_cross_entropy(student_logits: Tensor, teacher: Tensor) -> Tensor:
    """`-sum_i p_i log q_i` a row, in nats.

    Args:
        student_logits: `[K, Vd]`, any float dtype.
        teacher: `[K, Vd]`, probabilities over the draft vocabulary.

    Returns:
        `[K]` float32.
    """
    logits = student_logits.float()
    return logits.logsumexp(-1) - (teacher * logits).sum(-1)


def kl_divergence(student_logits: Tensor, teacher: Tensor) -> Tensor:
    """`sum_i p_i log(p_i / q_i)` a row: the cross entropy less the teacher's own entropy.

    Its gradient is the cross entropy's; its value is 0 for a perfect draft.
    """
    return soft_cross_entropy(student_logits, teacher) + torch.xlogy(teacher, teacher).sum(-1)


LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    Loss.SOFT_CE: soft_cross_entropy,
    Loss.KL: kl_divergence,
}


def step_weights(steps: int, decay: float) -> list[float]:
    """Weight of each training-time-test step in the loss: `decay ** s`, not normalised."""
    return [decay**step for step in range(steps)]
