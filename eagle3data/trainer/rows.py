"""Picking rows, each at most once: the gradient is then a copy back, not a sum.

torch's `index_select` must add, row by row with atomics, in an order that changes from run to
run, since its indices may repeat. Here they don't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


def take(values: Tensor, rows: Tensor) -> Tensor:
    """`values[rows]`.

    Args:
        values: `[N, ...]`.
        rows: `[R]` int64, no two alike.
    """
    if len(rows) == 0:
        return values[:0]
    taken: Tensor = _Take.apply(values, rows)  # type: ignore[no-untyped-call]
    return taken


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.length = len(values)
        return values.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (rows,) = ctx.saved_tensors
        whole = gradient.new_zeros((ctx.length, *gradient.shape[1:]))
        return whole.index_copy_(0, rows, gradient), None
