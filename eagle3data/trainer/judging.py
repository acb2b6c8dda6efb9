"""The draft's head, its loss and what is measured of it: one pass over the kept pairs, in chunks.

Logits of every training-time-test step at once would be `[7 T, Vd]`, several times over in
float32. The loss is a weighted sum of one value a pair, so a chunk's gradients are known as
soon as its logits are: they are taken at once, and only the gradients of the states and of
the matrix outlive the chunk. No product is done twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from eagle3data.trainer.compiling import compiled
from eagle3data.trainer.loss import LOSSES, Loss, Target
from eagle3data.trainer.teacher import Teacher, rows_per_chunk

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What came of the kept pairs, `[P]` each; no gradients flow from it.

    Attributes:
        losses: float32, in nats.
        guesses: int64, the draft's likeliest token, as a draft id.
        accepted: float32, sum of min(p, q): the chance that sampling keeps the draft's token.
        covered: float32, the target's mass that lies in the draft vocabulary.
    """

    losses: Tensor
    guesses: Tensor
    accepted: Tensor
    covered: Tensor


def judge(
    states: Tensor,
    lm_head: Tensor,
    teacher: Teacher,
    teacher_rows: Tensor,
    scales: Tensor,
    loss: Loss,
    *,
    eta: float = 3.0,
    compile: bool = False,  # noqa: A002
) -> tuple[Tensor, Judged]:
    """Loss and measurements of the draft's states.

    Args:
        states: `[P, H]`, the final norm applied, in the dtype of the products.
        lm_head: `[Vd, H]` float32.
        teacher: of the pack.
        teacher_rows: `[P]` int64, each state's row of the teacher.
        scales: `[P]` float32, each pair's weight in the loss.
        loss: which.
        eta: of `lk_lambda`.
        compile: compile what follows the product.

    Returns:
        The sum of scale times loss, float32, and what was measured.
    """
    total, *measured = _Judging.apply(  # type: ignore[no-untyped-call]
        states, lm_head, teacher, teacher_rows, scales, loss, eta, compile
    )
    losses, guesses, accepted, covered = measured
    return total, Judged(losses=losses, guesses=guesses, accepted=accepted, covered=covered)


def measure(
    logits: Tensor,
    draft_logits: Tensor,
    log_normaliser: Tensor,
    rows: Tensor,
    loss: Loss,
    eta: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, guess, acceptance and coverage of each of some pairs.

    Args:
        logits: `[R, Vd]`, the draft's, any float dtype.
        draft_logits: `[K, Vd]`, the teacher's.
        log_normaliser: `[K]`, the teacher's.
        rows: `[R]` int64, each pair's row of the teacher.
        loss: which; only it carries gradients.
        eta: of `lk_lambda`.
    """
    logits = logits.float()
    target_logits = draft_logits[rows]
    full = (target_logits - log_normaliser[rows, None]).exp()
    target = Target(restricted=target_logits.softmax(-1), full=full)
    losses = LOSSES[loss](logits, target, eta)
    fixed = logits.detach()
    accepted = torch.minimum(fixed.softmax(-1), full).sum(-1)
    return losses, fixed.argmax(-1), accepted, full.sum(-1)


class _Judging(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        lm_head: Tensor,
        teacher: Teacher,
        teacher_rows: Tensor,
        scales: Tensor,
        loss: Loss,
        eta: float,
        compile_it: bool,
    ) -> tuple[Tensor, ...]:
        learning = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        matrix = lm_head.to(states.dtype)
        states_gradient = torch.empty_like(states) if learning else None
        matrix_gradient = torch.zeros_like(lm_head) if ctx.needs_input_grad[1] else None
        total = scales.new_zeros(())
        measured = []
        rows = rows_per_chunk(states.device, len(matrix))
        for start in range(0, len(states), rows):
            chunk = slice(start, start + rows)
            logits = (states[chunk] @ matrix.T).requires_grad_(learning)  # [<=rows, Vd]
            with torch.set_grad_enabled(learning):
                found = compiled(measure, compile_it)(
                    logits,
                    teacher.draft_logits,
                    teacher.log_normaliser,
                    teacher_rows[chunk],
                    loss,
                    eta,
                )
                weighted = (found[0] * scales[chunk]).sum()
            total += weighted.detach()
            measured.append([column.detach() for column in found])
            if states_gradient is not None:
                (gradient,) = torch.autograd.grad(weighted, logits)
                states_gradient[chunk] = gradient @ matrix
                if matrix_gradient is not None:
                    matrix_gradient += gradient.T @ states[chunk]
        ctx.save_for_backward(states_gradient, matrix_gradient)
        columns = [torch.cat(column) for column in zip(*measured, strict=True)]
        if not columns:
            nothing = scales.new_empty(0)
            columns = [nothing, nothing.long(), nothing, nothing]
        ctx.mark_non_differentiable(*columns)
        return total, *columns

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        states_gradient, matrix_gradient = ctx.saved_tensors
        if states_gradient is not None:
            states_gradient = states_gradient * gradient.to(states_gradient.dtype)
        if matrix_gradient is not None:
            matrix_gradient = matrix_gradient * gradient
        return states_gradient, matrix_gradient, None, None, None, None, None, None
