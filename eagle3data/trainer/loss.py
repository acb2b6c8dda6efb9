"""Losses of a step: the draft's distribution against the teacher's, over the draft vocabulary.

Each returns one value a kept position; the loop averages over kept positions only, so neither
padding nor packing nor the number of micro-batches changes what a step of the optimiser sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Loss(StrEnum):
    """Which distance to the teacher is minimised."""

    SOFT_CE = "soft_ce"
    KL = "kl"
    LK_ALPHA = "lk_alpha"
    LK_LAMBDA = "lk_lambda"


@dataclass(frozen=True, kw_only=True)
class Target:
    """The teacher's probabilities of the draft vocabulary at some positions, `[K, Vd]` float32.

    Attributes:
        restricted: renormalised over the draft vocabulary.
        full: as they are; what lies outside the draft vocabulary is missing from their sum.
    """

    restricted: Tensor
    full: Tensor


def soft_cross_entropy(logits: Tensor, target: Target, _eta: float) -> Tensor:
    """`-sum_i p_i log q_i` a row, in nats; p is the restricted teacher.

    Args:
        logits: `[K, Vd]` float32, the draft's.
        target: the teacher's.

    Returns:
        `[K]` float32.
    """
    return logits.logsumexp(-1) - (target.restricted * logits).sum(-1)


def kl_divergence(logits: Tensor, target: Target, eta: float) -> Tensor:
    """`sum_i p_i log(p_i / q_i)` a row: the cross entropy less the teacher's own entropy.

    Its gradient is the cross entropy's; its value is 0 for a perfect draft.
    """
    p = target.restricted
    return soft_cross_entropy(logits, target, eta) + torch.xlogy(p, p).sum(-1)


def negative_log_acceptance(logits: Tensor, target: Target, _eta: float) -> Tensor:
    """`-log a` a row, where `a = sum_i min(p_i, q_i)` is the chance that sampling accepts.

    The LK loss without hyper-parameters of Samarin et al., "LK Losses: Direct Acceptance Rate
    Optimization for Speculative Decoding", arXiv 2602.23881. Its gradient is that of the total
    variation over `a`, so that it doesn't vanish while the two hardly overlap. p is the FULL
    teacher: that is what a server compares with, and no renormalising is needed.
    """
    return -_acceptance(logits, target).clamp(min=_LEAST).log()


def adaptive_blend(logits: Tensor, target: Target, eta: float) -> Tensor:
    """`w KL + (1 - w) (1 - a)` a row, with `w = exp(-eta a)` held constant for the gradient.

    The hybrid LK loss of arXiv 2602.23881 (the paper's best eta is 3): KL while the draft is
    far off, total variation as it comes near. The weight is taken a position, as speculators
    does; where others average the acceptance of a batch first, theirs is the same on average.
    KL is against the restricted teacher, the acceptance `a` against the full one.

    Args:
        logits: `[K, Vd]` float32, the draft's.
        target: the teacher's.
        eta: how soon the weight passes to the acceptance; 0 is KL alone.
    """
    accepted = _acceptance(logits, target)
    weight = (-eta * accepted.detach()).exp()
    return weight * kl_divergence(logits, target, eta) + (1 - weight) * (1 - accepted)


LOSSES: dict[Loss, Callable[[Tensor, Target, float], Tensor]] = {
    Loss.SOFT_CE: soft_cross_entropy,
    Loss.KL: kl_divergence,
    Loss.LK_ALPHA: negative_log_acceptance,
    Loss.LK_LAMBDA: adaptive_blend,
}

_LEAST = 1e-12
"""Below any overlap that float32 softmaxes have; keeps the logarithm finite."""


def _acceptance(logits: Tensor, target: Target) -> Tensor:
    return torch.minimum(logits.softmax(-1), target.full).sum(-1)


def step_weights(steps: int, decay: float) -> list[float]:
    """Weight of each training-time-test step in the loss: `decay ** s`, not normalised."""
    return [decay**step for step in range(steps)]
