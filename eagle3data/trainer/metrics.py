"""What a draft is worth, per training-time-test step; projects differ, so definitions are data.

Sums are kept, not means: packs, micro-batches and ranks add up, and rates come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from eagle3data.trainer.judging import Judged
from eagle3data.trainer.teacher import Teacher
from eagle3data.trainer.ttt import Pairs

if TYPE_CHECKING:
    from torch import Tensor

DEFINITIONS = {
    "kept": "pairs (t, s) inside a document whose loss mask is set, by the run's mask alignment",
    "loss": "the step's loss in nats against the teacher restricted to the draft vocabulary, "
    "averaged over kept positions; the run's loss is the sum over steps weighted by decay^s",
    "accuracy": "share of ALL kept positions where the draft's argmax, as a target token, is the "
    "target's argmax over its full vocabulary; a target token outside the draft vocabulary "
    "counts as wrong",
    "accuracy_given_earlier": "the same, over positions kept and right at every earlier step",
    "acceptance": "mean of sum_i min(p_i, q_i), the chance that sampling accepts the draft's "
    "token; p is the target's FULL distribution, q the draft's",
    "coverage": "mean share of the target's distribution that lies in the draft vocabulary",
    "simulated_acceptance_length": "1 + sum_s prod_{i<=s} accuracy_given_earlier_i: tokens a "
    "greedy target call yields with as many drafted tokens as there are steps, the "
    "target's own token included; every kept position counts the same",
    "walked_acceptance_length": "tokens a greedy target call yields with at most 3 drafted tokens, "
    "counted as a server goes: from an answer's start, each step begins after what the one before "
    "it kept, so stretches that are hard to foretell take more of the steps; of evaluations only",
    "commonest_token_accuracy": "accuracy at step 0 of always guessing the token that is most "
    "frequent among the training tokens that carry loss",
    "seconds": "of a training step, from its packs to the new parameters",
    "waited": "seconds before a training step that no pack was there for it",
}

_COLUMNS = (
    "kept",
    "loss",
    "right",
    "chain_kept",
    "chain_right",
    "acceptance",
    "coverage",
    "commonest",
)


WALKED_TOKENS = 3
"""Drafted a step in `walked_acceptance_length`: what servers of EAGLE-3 usually draft."""


class Metrics:
    """Sums over packs, `[steps, columns]` float64, and the rates that follow from them."""

    def __init__(
        self,
        weights: Sequence[float],
        device: torch.device | str = "cpu",
        *,
        walking: bool = False,
    ) -> None:
        """Start from nothing.

        Args:
            weights: each step's weight in the loss.
            device: where the sums are kept until `rates` reads them.
            walking: find `walked_acceptance_length` too, on the host, which a GPU waits for.
        """
        self.weights = list(weights)
        self.walking = walking
        self.walked = torch.zeros(2, dtype=torch.float64, device=device)  # steps, tokens kept
        self.sums = torch.zeros(len(weights), len(_COLUMNS), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(
        self,
        pairs: Pairs,
        judged: Judged,
        teacher: Teacher,
        *,
        draft_ids: Tensor,
        commonest_token: int,
    ) -> None:
        """Count one pack.

        Args:
            pairs: its kept pairs.
            judged: what came of them.
            teacher: the pack's.
            draft_ids: `[Vd]` int64, the draft vocabulary as target ids.
            commonest_token: target id.
        """
        wanted = teacher.argmax[pairs.teacher_rows]  # [P]
        right = draft_ids[judged.guesses] == wanted
        chained = _chained(pairs, right)
        columns = (
            torch.ones_like(right),
            judged.losses,
            right,
            chained,
            right & chained,
            judged.accepted,
            judged.covered,
            wanted == commonest_token,
        )
        table = torch.stack([column.double() for column in columns], dim=1)  # [P, columns]
        self.sums.index_add_(0, pairs.step, table)
        if self.walking:
            self.walked += torch.tensor(walk(pairs, right & chained)).to(self.walked)

    def rates(self) -> dict[str, Any]:
        """The numbers that `DEFINITIONS` defines: some of the whole, `steps` one a step."""
        table = [dict(zip(_COLUMNS, row, strict=True)) for row in self.sums.tolist()]
        steps = [
            {
                "kept": int(row["kept"]),
                "loss": _rate(row["loss"], row["kept"]),
                "accuracy": _rate(row["right"], row["kept"]),
                "accuracy_given_earlier": _rate(row["chain_right"], row["chain_kept"]),
                "acceptance": _rate(row["acceptance"], row["kept"]),
                "coverage": _rate(row["coverage"], row["kept"]),
            }
            for row in table
        ]
        length, survival = 1.0, 1.0
        for step in steps:
            survival *= step["accuracy_given_earlier"]
            length += survival
        steps_walked, tokens_kept = self.walked.tolist()
        walked = {"walked_acceptance_length": 1 + _rate(tokens_kept, steps_walked)}
        return {
            "loss": sum(w * step["loss"] for w, step in zip(self.weights, steps, strict=True)),
            "accuracy": steps[0]["accuracy"],
            "simulated_acceptance_length": length,
            **(walked if self.walking else {}),
            "commonest_token_accuracy": _rate(table[0]["commonest"], table[0]["kept"]),
            "steps": steps,
        }


def walk(pairs: Pairs, right: Tensor) -> tuple[int, int]:
    """A greedy server's steps over the answers of a pack, and how many drafted tokens they keep.

    Args:
        pairs: the pack's.
        right: `[P]` bool, right at this step and at every one before it.
    """
    drafted = right & (pairs.step < WALKED_TOKENS)
    kept = torch.zeros(pairs.length, dtype=torch.int64, device=right.device)
    kept.index_add_(0, pairs.base, drafted.long())
    starts = pairs.base[: pairs.counts[0]].cpu().numpy()  # ascending: where a step may begin
    run = kept.cpu().numpy()[starts]
    # A step gives its kept tokens and one of the target's own.
    following = np.searchsorted(starts, starts + run + 1).tolist()
    steps = total = place = 0
    while place < len(starts):
        steps, total, place = steps + 1, total + int(run[place]), following[place]
    return steps, total


def _rate(total: float, count: float) -> float:
    return total / count if count else 0.0


def _chained(pairs: Pairs, right: Tensor) -> Tensor:
    """`[P]` bool: the base position was kept and right at every step before the pair's."""
    grid = torch.zeros(len(pairs.counts), pairs.length, dtype=torch.bool, device=right.device)
    grid[pairs.step, pairs.base] = right
    so_far = grid.cumprod(0).bool()  # right at this step and at all before it
    before = torch.cat([torch.ones_like(so_far[:1]), so_far[:-1]])
    return before[pairs.step, pairs.base]
