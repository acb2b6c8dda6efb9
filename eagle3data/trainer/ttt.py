"""Training-time test: the draft run over its own outputs, step by step, on one pack.

EAGLE-3 drafts several tokens in a row, feeding its own states back. Training does the same:
step 0 reads the target's fused states, step s the draft's states of step s-1, while the
tokens stay the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from eagle3data.readers.batch import Batch
from eagle3data.storage.model_weights import TargetHead
from eagle3data.trainer.attention import StepKeys
from eagle3data.trainer.draft import AUX_STATES, Draft
from eagle3data.trainer.shift import MaskAlignment, ShiftedStep, shift
from eagle3data.trainer.teacher import Teacher, teach

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """What the draft says at one step, at the kept positions only.

    Attributes:
        step: s.
        base: `[K]` int64, the kept base positions.
        logits: `[K, Vd]`, the draft's.
        teacher_rows: `[K]` int64, each one's row of the pack's `Teacher`.
    """

    step: int
    base: Tensor
    logits: Tensor
    teacher_rows: Tensor


def shifted_steps(batch: Batch, steps: int, alignment: MaskAlignment) -> list[ShiftedStep]:
    """The pack as each of `steps` training-time-test steps sees it."""
    return [
        shift(
            input_ids=batch.input_ids,
            loss_mask=batch.loss_mask,
            position_ids=batch.position_ids,
            document_ids=batch.document_ids,
            step=step,
            alignment=alignment,
        )
        for step in range(steps)
    ]


def kept_counts(steps: list[ShiftedStep]) -> Tensor:
    """`[steps]` float64: kept positions of each step."""
    return torch.stack([step.keep.sum() for step in steps]).double()


def teach_pack(
    head: TargetHead,
    batch: Batch,
    steps: list[ShiftedStep],
    draft_ids: Tensor,
    *,
    post_norm: bool = False,
) -> tuple[Teacher, Tensor]:
    """The teacher of every position that some kept (t, s) looks at, and no other.

    Returns:
        The teacher, and `[T]` int64: a position's row in it, -1 where it has none.
    """
    wanted = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    for step in steps:
        wanted[step.teacher_positions[step.keep]] = True
    positions = wanted.nonzero()[:, 0]
    row_of = torch.full_like(batch.input_ids, -1, dtype=torch.int64)
    row_of[positions] = torch.arange(len(positions), device=positions.device)
    final_states = batch.hidden_states[AUX_STATES][positions]
    return teach(head, final_states, draft_ids, post_norm=post_norm), row_of


def unroll(
    draft: Draft, batch: Batch, steps: list[ShiftedStep], row_of: Tensor
) -> Iterator[StepOutput]:
    """Run the draft over a pack.

    Args:
        draft: the draft.
        batch: its states are the three aux layers, lowest first, then the final one.
        steps: what `shifted_steps` gave.
        row_of: what `teach_pack` gave.
    """
    cu_seqlens = batch.cu_seqlens.tolist()
    cache = StepKeys()
    hidden = draft.fuse(batch.hidden_states[:AUX_STATES])
    for number, step in enumerate(steps):
        hidden = draft(step.token_ids, hidden, step.rotary_positions, cache, cu_seqlens)
        base = step.keep.nonzero()[:, 0]
        yield StepOutput(
            step=number,
            base=base,
            logits=draft.logits(hidden[base]),
            teacher_rows=row_of[step.teacher_positions[base]],
        )
