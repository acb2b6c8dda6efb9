"""Training-time test: the draft run over its own outputs, step by step, on one pack.

EAGLE-3 drafts several tokens in a row, feeding its own states back. Training does the same:
step 0 reads the target's fused states, step s the draft's states of step s-1, while the
tokens stay the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from eagle3data.readers.batch import Batch
from eagle3data.trainer.attention import Attention, FlexAttention, PlainAttention
from eagle3data.trainer.compiling import compiled
from eagle3data.trainer.draft import AUX_STATES, Draft
from eagle3data.trainer.layer import LayerWeights, finish, project
from eagle3data.trainer.shift import MaskAlignment, shift, shift_rows

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How a pack is computed; none of it changes what is computed but for rounding.

    Attributes:
        dtype: of matrix products; parameters stay float32.
        flex: attention in a fused kernel, not in dense arithmetic.
        compile: torch.compile for attention, layers, teacher and loss.
        checkpoint: keep each step's inputs only and compute it again for its gradients.
    """

    dtype: torch.dtype = torch.float32
    flex: bool = False
    compile: bool = False
    checkpoint: bool = False


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The kept pairs (base position t, step s) of a pack: step 0's first, t ascending in each.

    Attributes:
        base: `[P]` int64, t.
        step: `[P]` int64, s.
        counts: how many of each step.
        positions: `[K]` int64 ascending, where the target is asked: t+1+s of some pair.
        teacher_rows: `[P]` int64, each pair's place in `positions`.
        rows: T, of the pack.
    """

    base: Tensor
    step: Tensor
    counts: list[int]
    positions: Tensor
    teacher_rows: Tensor
    rows: int

    def to(self, device: torch.device | str) -> Pairs:
        """The same pairs on a device."""
        return replace(
            self,
            base=self.base.to(device, non_blocking=True),
            step=self.step.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            teacher_rows=self.teacher_rows.to(device, non_blocking=True),
        )


def find_pairs(batch: Batch, steps: int, alignment: MaskAlignment) -> Pairs:
    """What of a pack is trained on. Cheap, and done on the host: counts are known at once."""
    bases, teachers = [], []
    for step in range(steps):
        view = shift(
            input_ids=batch.input_ids,
            loss_mask=batch.loss_mask,
            position_ids=batch.position_ids,
            document_ids=batch.document_ids,
            step=step,
            alignment=alignment,
        )
        bases.append(view.keep.nonzero()[:, 0])
        teachers.append(view.teacher_positions[bases[-1]])
    counts = [len(base) for base in bases]
    positions, teacher_rows = torch.unique(torch.cat(teachers), return_inverse=True)
    base = torch.cat(bases)
    step_of = torch.arange(steps, device=base.device).repeat_interleave(
        torch.tensor(counts, device=base.device)
    )
    return Pairs(
        base=base,
        step=step_of,
        counts=counts,
        positions=positions,
        teacher_rows=teacher_rows,
        rows=len(batch.input_ids),
    )


def unroll(draft: Draft, batch: Batch, pairs: Pairs, speed: Speed) -> Tensor:
    """Run the draft over a pack, feeding its outputs back.

    Args:
        draft: the draft.
        batch: its states are the three aux layers, lowest first, then the final one.
        pairs: what `find_pairs` gave.
        speed: how.

    Returns:
        `[P, H]` in `speed.dtype`, the draft's states at the kept pairs, before the final norm.
    """
    weights = draft.midlayer.weights(speed.dtype)
    embedded = draft.embed(batch.input_ids, weights)
    hidden = draft.fuse(batch.hidden_states[:AUX_STATES], speed.dtype)
    attend = _attention(batch, speed)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    kept = []
    for step, base in enumerate(pairs.base.split_with_sizes(pairs.counts)):
        rotary = draft.rotary(batch.position_ids + step)
        arguments = (draft, hidden, embedded, step, rotary, weights, attend, speed.compile)
        earlier = (tuple(keys), tuple(values))
        if speed.checkpoint and torch.is_grad_enabled():
            hidden, key, value = checkpoint(
                _one_step, *arguments, *earlier, use_reentrant=False, preserve_rng_state=False
            )
        else:
            hidden, key, value = _one_step(*arguments, *earlier)
        keys.append(key)
        values.append(value)
        kept.append(hidden.index_select(0, base))
    return torch.cat(kept)


def _one_step(
    draft: Draft,
    hidden: Tensor,
    embedded: Tensor,
    step: int,
    rotary: tuple[Tensor, Tensor],
    weights: LayerWeights,
    attend: Attention,
    compile_it: bool,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """States `[T, H]` to those of the next step; also this step's keys and values `[T, KV, D]`."""
    added = shift_rows(embedded, step)
    normed, query, key, value = compiled(project, compile_it)(
        hidden, added, rotary, weights, draft.sizes
    )
    attended = attend(query, [*keys, key], [*values, value])
    residual = normed if draft.config.norm_before_residual else hidden
    return compiled(finish, compile_it)(residual, attended, weights, draft.sizes), key, value


def _attention(batch: Batch, speed: Speed) -> Attention:
    if speed.flex:
        return FlexAttention(batch.document_ids, compile=speed.compile)
    return PlainAttention(batch.cu_seqlens.tolist())
