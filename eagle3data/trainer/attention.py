"""Attention over training-time-test steps: causal to step 0, own position only to later steps.

At step s the query of base position t sees the keys of step 0 at j <= t in its document and,
of each step 1..s, only the key of t itself. So the later steps add one score a query and step
(a diagonal), not a matrix. Documents are contiguous in a pack, and each is attended on its
own: no document mask is needed, and a pack costs the sum of its documents' squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class StepKeys:
    """Keys and values of the steps so far, each `[T, key_value_heads, head_dim]`, step 0 first."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def append(self, keys: Tensor, values: Tensor) -> None:
        self.keys.append(keys)
        self.values.append(values)


def ttt_attention(query: Tensor, cache: StepKeys, cu_seqlens: Sequence[int]) -> Tensor:
    """Attend the queries of the newest step in `cache`.

    Args:
        query: `[T, heads, head_dim]`, rotated.
        cache: keys (rotated) and values of every step up to the query's own.
        cu_seqlens: where documents start, and where the last one ends; rows from there on
            are padding and give zeros.

    Returns:
        `[T, heads, head_dim]`.
    """
    pieces = []
    for start, end in pairwise(cu_seqlens):
        if start == end:
            continue
        keys = [step[start:end].transpose(0, 1) for step in cache.keys]  # [KV, n, D]
        values = [step[start:end].transpose(0, 1) for step in cache.values]  # [KV, n, D]
        document = query[start:end].transpose(0, 1)  # [A, n, D]
        attend = _first_step if len(keys) == 1 else _later_step
        pieces.append(attend(document, keys, values).transpose(0, 1))
    padding = len(query) - cu_seqlens[-1]
    if padding or not pieces:
        pieces.append(query.new_zeros((padding, *query.shape[1:])))
    return torch.cat(pieces)


def _first_step(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Plain causal attention; `[A, n, D]`."""
    return F.scaled_dot_product_attention(
        query[None], keys[0][None], values[0][None], is_causal=True, enable_gqa=True
    )[0]


def _later_step(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """One softmax over step 0's causal scores and the later steps' own scores; `[A, n, D]`."""
    heads, length, size = query.shape
    grouped = query.view(len(keys[0]), -1, length, size) * size**-0.5  # [KV, A/KV, n, D]
    scores = (grouped @ keys[0][:, None].transpose(-1, -2)).float()  # [KV, A/KV, n, n]
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    own = [(grouped.float() * key[:, None].float()).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.cat([scores.masked_fill(future, -torch.inf), *own], dim=-1).softmax(-1)
    attended = weights[..., :length].to(query.dtype) @ values[0][:, None]
    for step, value in enumerate(values[1:]):
        attended = attended + weights[..., length + step, None].to(query.dtype) * value[:, None]
    return attended.reshape(heads, length, size)
