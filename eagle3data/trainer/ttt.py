"""Training-time test: the draft run over its own outputs, step by step, on one pack.

EAGLE-3 drafts several tokens in a row, feeding its own states back. Training does the same:
step 0 reads the target's fused states, step s the draft's states of step s-1, while the
tokens stay the real ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from eagle3data.readers.batch import Batch
from eagle3data.trainer.attention import Attention, FlexAttention, PlainAttention
from eagle3data.trainer.compiling import compiled
from eagle3data.trainer.draft import AUX_STATES, Draft
from eagle3data.trainer.layer import LayerWeights, finish, project
from eagle3data.trainer.rows import take
from eagle3data.trainer.shift import MaskAlignment, shift, token_positions

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


ROWS_MULTIPLE = 128
"""Base positions are computed in a multiple of this, so that few shapes come up."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The kept pairs (base position t, step s) of a pack: step 0's first, t ascending in each.

    Attributes:
        base: `[P]` int64, t.
        step: `[P]` int64, s.
        counts: how many of each step.
        positions: `[K]` int64 ascending, where the target is asked: t+1+s of some pair.
        teacher_rows: `[P]` int64, each pair's place in `positions`.
        rows: `[R]` int64 ascending, the base positions that are unrolled: those of the pairs,
            and some more to fill R up. A prompt's positions only give keys and values at step 0.
        base_rows: `[P]` int64, each pair's place in `rows`.
        length: T, of the pack.
    """

    base: Tensor
    step: Tensor
    counts: list[int]
    positions: Tensor
    teacher_rows: Tensor
    rows: Tensor
    base_rows: Tensor
    length: int

    def to(self, device: torch.device | str) -> Pairs:
        """The same pairs on a device."""
        return replace(
            self,
            base=self.base.to(device, non_blocking=True),
            step=self.step.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            teacher_rows=self.teacher_rows.to(device, non_blocking=True),
            rows=self.rows.to(device, non_blocking=True),
            base_rows=self.base_rows.to(device, non_blocking=True),
        )


def find_pairs(batch: Batch, steps: int, alignment: MaskAlignment) -> Pairs:
    """What of a pack is trained on, in host memory.

    Counted on the host, from a copy of the small tensors: on a GPU each step's count would wait
    for it.
    """
    columns = {
        name: getattr(batch, name).cpu().numpy()
        for name in ("input_ids", "loss_mask", "position_ids", "document_ids")
    }
    bases, teachers = [], []
    for step in range(steps):
        view = shift(**columns, step=step, alignment=alignment)
        bases.append(view.keep.nonzero()[0])
        teachers.append(view.teacher_positions[bases[-1]])
    counts = [len(base) for base in bases]
    length = len(batch.input_ids)
    base, teacher = np.concatenate(bases), np.concatenate(teachers)
    asked, rows = _marked(teacher, length), _filled_up(_marked(base, length))
    return Pairs(
        base=torch.from_numpy(base),
        step=torch.from_numpy(np.arange(steps).repeat(counts)),
        counts=counts,
        positions=torch.from_numpy(asked.nonzero()[0]),
        teacher_rows=torch.from_numpy(_places(asked)[teacher]),
        rows=torch.from_numpy(rows.nonzero()[0]),
        base_rows=torch.from_numpy(_places(rows)[base]),
        length=length,
    )


def _marked(positions: np.ndarray, length: int) -> np.ndarray:
    """`[length]` bool, where any of the positions is."""
    marks = np.zeros(length, np.bool_)
    marks[positions] = True
    return marks


def _places(marks: np.ndarray) -> np.ndarray:
    """Of each marked position, its number among them."""
    return marks.cumsum() - 1


def _filled_up(marks: np.ndarray) -> np.ndarray:
    """Some more marked, the first free ones, to make a multiple of `ROWS_MULTIPLE`; never none."""
    marked = int(marks.sum())
    wanted = max(1, math.ceil(marked / ROWS_MULTIPLE)) * ROWS_MULTIPLE
    filled = marks.copy()
    filled[(~marks).nonzero()[0][: wanted - marked]] = True
    return filled


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
    weights = [layer.weights(speed.dtype) for layer in draft.all_layers]
    embedded = draft.embed(batch.input_ids, weights[0])
    past_the_end = embedded.new_zeros((len(pairs.counts), embedded.shape[1]))
    everything = torch.arange(pairs.length, device=pairs.rows.device)
    attend = _attention(batch, pairs.rows, speed)
    pack = _Pack(
        draft=draft,
        weights=weights,
        embedded=torch.cat([embedded, past_the_end]),
        positions=batch.position_ids,
        rows=pairs.rows,
        everything=everything,
        attend=attend,
        attend_all=_attention(batch, everything, speed) if len(weights) > 1 else attend,
        speed=speed,
    )
    hidden = draft.fuse(batch.hidden_states[:AUX_STATES], speed.dtype)
    earlier: list[Caches] = []
    kept = []
    for step, base in enumerate(pairs.base_rows.split_with_sizes(pairs.counts)):
        if speed.checkpoint and torch.is_grad_enabled():
            states, caches = checkpoint(
                pack.one_step,
                hidden,
                step,
                tuple(earlier),
                use_reentrant=False,
                preserve_rng_state=False,
            )
        else:
            states, caches = pack.one_step(hidden, step, tuple(earlier))
        earlier.append(caches)
        kept.append(take(states, base))
        hidden = draft.normed(states) if draft.config.norm_output else states
    return torch.cat(kept)


Caches = list[tuple["Tensor", "Tensor"]]
"""A step's keys and values, `[T or R, KV, D]` each, layer by layer."""


@dataclass(frozen=True, kw_only=True)
class _Pack:
    """What the steps of a pack share."""

    draft: Draft
    weights: list[LayerWeights]
    embedded: Tensor  # [T + steps, (A + 2 KV) D]
    positions: Tensor  # [T]
    rows: Tensor  # [R]
    everything: Tensor  # [T], every base position
    attend: Attention  # of the R rows
    attend_all: Attention  # of all
    speed: Speed

    def one_step(
        self, hidden: Tensor, step: int, earlier: tuple[Caches, ...]
    ) -> tuple[Tensor, Caches]:
        """Hidden inputs to the draft's states `[R, H]`; also the step's keys and values.

        The inputs are of all T base positions at step 0, since the R ones see all keys; what
        needs no keys of the others, the end of the last layer, is done for the R alone.
        """
        base = self.rows if step else self.everything
        rotary = self.draft.rotary(self.positions[base] + step)
        added: Tensor | None = take(self.embedded, token_positions(base, step))
        caches: Caches = []
        for number, weights in enumerate(self.weights):
            narrowing = step == 0 and number == len(self.weights) - 1
            hidden, cache = self._layer(
                hidden,
                added,
                rotary,
                weights,
                [caches_of[number] for caches_of in earlier],
                attend=self.attend if step or narrowing else self.attend_all,
                narrowing=narrowing,
            )
            caches.append(cache)
            added = None
        return hidden, caches

    def _layer(
        self,
        hidden: Tensor,
        added: Tensor | None,
        rotary: tuple[Tensor, Tensor],
        weights: LayerWeights,
        earlier: Caches,
        *,
        attend: Attention,
        narrowing: bool,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One layer of one step; `narrowing` goes from all base positions to the R rows."""
        draft, compile_it = self.draft, self.speed.compile
        normed, query, key, value = compiled(project, compile_it)(
            hidden, added, rotary, weights, draft.sizes
        )
        first = weights.embedding_qkv is not None
        residual = normed if first and draft.config.norm_before_residual else hidden
        if narrowing:
            query, residual = take(query, self.rows), take(residual, self.rows)
        keys = [*(keys for keys, _ in earlier), key]
        values = [*(values for _, values in earlier), value]
        attended = attend(query, keys, values)
        out: Tensor = compiled(finish, compile_it)(residual, attended, weights, draft.sizes)
        return out, (key, value)


def _attention(batch: Batch, rows: Tensor, speed: Speed) -> Attention:
    if speed.flex:
        return FlexAttention(batch.document_ids, rows, compile=speed.compile)
    return PlainAttention(batch.cu_seqlens.tolist(), rows)
