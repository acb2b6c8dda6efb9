"""The witness: each sample's last row, through the head, against the engine's own next token.

The engine chose `witness_token` from its OWN logits, so lm_head(norm(last row of layer N))
must choose it too, at the same log-probability up to the engine's rounding. It proves the last
row, the final layer and its norm for every sample; nothing of other rows or layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.storage.model_weights import TargetHead

ROUNDING = 2.0**-7
"""One unit in the last place of a bfloat16 logit, relative: right readings differ by about that."""
SPREAD = 20
"""A right sample's difference lies within this many times the set's median difference."""
MOSTLY = 0.5
"""With fewer samples than this agreeing, something is wrong with the set, not with samples."""
_BLOCK = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """Last rows read through the head.

    Attributes:
        difference: `[n]` log-probability of the witness token here minus the engine's (nats).
        behind: `[n]` how far the witness token's logit is below the largest.
        rounding: `[n]` what bfloat16 logits of this size round by.
    """

    difference: Tensor
    behind: Tensor
    rounding: Tensor

    def agrees(self, tolerance: float = 0.0) -> Tensor:
        """`[n]` bool: chosen, or tied within rounding, and as likely as the engine said."""
        allowed = (2 * self.rounding).clamp(min=tolerance)
        return (self.difference.abs() <= allowed) & (self.behind <= allowed)


def read(
    head: TargetHead, rows: Tensor, tokens: Tensor, logprobs: Tensor, *, post_norm: bool
) -> Reading:
    """Compare `[n, H]` rows with `[n]` witness tokens and `[n]` log-probabilities (nats)."""
    import torch

    difference, behind, rounding = [], [], []
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        logits = head.logits(rows[block], post_norm=post_norm)
        own = logits.gather(1, tokens[block, None]).squeeze(1)
        top = logits.amax(1)
        difference.append(own - logits.logsumexp(1) - logprobs[block])
        behind.append(top - own)
        rounding.append(ROUNDING * torch.maximum(top.abs(), own.abs()))
    return Reading(
        difference=torch.nan_to_num(torch.cat(difference), nan=float("inf")),
        behind=torch.nan_to_num(torch.cat(behind), nan=float("inf")),
        rounding=torch.nan_to_num(torch.cat(rounding), nan=0.0),
    )


def joined(readings: Sequence[Reading]) -> Reading:
    """Several readings as one, in their order."""
    import torch

    return Reading(
        difference=torch.cat([one.difference for one in readings]),
        behind=torch.cat([one.behind for one in readings]),
        rounding=torch.cat([one.rounding for one in readings]),
    )


def disagreeing(reading: Reading) -> tuple[Tensor, bool]:
    """Which samples disagree, and whether so many that the set as a whole does.

    The tolerance follows the set: a set read right as a whole shows how far right readings
    differ on its engine. A set whose median is beyond rounding itself is not read right.
    """
    size = reading.difference.abs()
    median = float(size.median())
    strict = reading.agrees()
    whole = float(strict.float().mean()) < MOSTLY or median > float(reading.rounding.median()) / 2
    return ~reading.agrees(0.0 if whole else SPREAD * median), whole
