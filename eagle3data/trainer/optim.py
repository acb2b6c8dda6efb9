"""The optimiser and its schedule: AdamW, or Muon for the matrices beside AdamW for the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from eagle3data.schema.errors import InputError
from eagle3data.trainer.config import OptimizerSection
from eagle3data.trainer.parallel import Parallel

NOT_MUONS = ("lm_head.weight",)
"""Matrices whose rows are tokens, not a map between hidden states: AdamW's, as in the field."""


def make_optimizers(
    parameters: Iterable[tuple[str, torch.nn.Parameter]],
    section: OptimizerSection,
    parallel: Parallel = Parallel.NONE,
) -> list[torch.optim.Optimizer]:
    """One or two optimisers over the parameters that train.

    Muon's steps are scaled to the size that AdamW's have, so one learning rate serves both.

    Args:
        parameters: with their names.
        section: the run's settings; an optimiser that is left open is AdamW.
        parallel: how the parameters are spread.

    Raises:
        InputError: Muon over shards.
    """
    if section.name == "muon" and parallel is Parallel.FSDP2:
        # Tried with torch 2.13: the parameters drift from one process's within six steps.
        raise InputError(
            "optimizer.name is muon, which makes whole matrices orthogonal; under fsdp2 every "
            "process holds a slice of each. Use train.parallel=ddp, or optimizer.name=adamw."
        )
    trained = [(name, p) for name, p in parameters if p.requires_grad]
    muons = [
        p
        for name, p in trained
        if section.name == "muon" and p.dim() == 2 and not name.endswith(NOT_MUONS)
    ]
    taken = set(map(id, muons))
    others = [p for _, p in trained if id(p) not in taken]
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            others,
            lr=section.peak,
            betas=section.betas,
            weight_decay=section.weight_decay,
            fused=True,
        )
    ]
    if muons:
        made.append(
            torch.optim.Muon(
                muons,
                lr=section.peak,
                momentum=section.momentum,
                weight_decay=section.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return made


def learning_rate(section: OptimizerSection, step: int, total_steps: int) -> float:
    """The rate of the step after `step` steps: a linear warm-up, then a fall to zero."""
    warmup = math.ceil(section.warmup_share * total_steps)
    if step < warmup:
        return section.peak * (step + 1) / warmup
    left = 1.0 - (step - warmup) / max(1, total_steps - warmup)
    if section.schedule == "cosine":
        left = 0.5 * (1.0 - math.cos(math.pi * left))
    return section.peak * left
