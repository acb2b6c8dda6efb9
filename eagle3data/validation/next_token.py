"""The next-token probe: a state, through the target's own norm and lm_head, says what follows.

It chooses among the tokens of the probed rows and a thousand others, not among the whole
vocabulary: that tells shifts, layers and norms apart as well, and costs a fraction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eagle3data.validation.token_identity import Sequences, stands_above

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.storage.model_weights import TargetHead

SHIFTS = tuple(range(-2, 4))
ROWS_PER_SAMPLE = 16
MIN_ROWS = 512
"""Of a few long samples more rows are read, to make this many."""
MAX_ROWS = 2048
OTHERS = 1024
"""Tokens, spread over the vocabulary, that a row may choose besides those of the probed rows."""
MARGIN_NATS = 0.1
"""A way of reading a state must be better by this much, on average, to count as better."""
TRAINED_RATIO = 1.5
_BLOCK = 512
_SKIPPED_ROWS = 4
_SPECTRUM_ROWS = 1024


def choose_rows(sequences: Sequences) -> Tensor:
    """`[P]` rows to probe: spread over every sample, with all shifts inside it.

    A sample's first rows (attention sinks) and contexts that another sample shares are left out.
    """
    import torch

    count = max(len(sequences), 1)
    per_sample = max(1, min(max(ROWS_PER_SAMPLE, MIN_ROWS // count), MAX_ROWS // count))
    chosen = []
    for sample in range(len(sequences)):
        span = sequences.rows(sample)
        first = span.start + _SKIPPED_ROWS
        rows = torch.arange(first, max(first, span.stop - max(SHIFTS)))
        rows = rows[~sequences.shared[rows]]
        if len(rows) > per_sample:
            rows = rows[torch.linspace(0, len(rows) - 1, per_sample).long()]
        chosen.append(rows)
    return torch.cat(chosen)


@dataclass(frozen=True, kw_only=True, eq=False)
class NextToken:
    """What the probe says of one layer.

    Attributes:
        by_shift: share of rows whose most likely token is the one `shift` places on.
        shift: the shift that fits best, or None where none stands out.
        right: `[P]` bool, rows that predict the token that follows (shift 1).
        logprob: `[P]` float32, log-probability of the token that follows, among those to choose
            from (nats); None unasked.
    """

    by_shift: dict[int, float]
    shift: int | None
    right: Tensor
    logprob: Tensor | None


def measure(
    head: TargetHead,
    states: Tensor,
    targets: dict[int, Tensor],
    log_alpha: float,
    *,
    post_norm: bool,
    likelihood: bool,
) -> NextToken:
    """Read states through the head and see which token they foretell.

    Args:
        head: the target's.
        states: `[P, H]` of one layer.
        targets: for each of `SHIFTS`, `[P]` the token that many places on.
        log_alpha: threshold of the paired comparison between the best shift and each other.
        post_norm: read them as already normed.
        likelihood: also how likely the token that follows is.
    """
    import torch

    head, targets = _among(head, targets)
    best, following = [], []
    for start in range(0, len(states), _BLOCK):
        block = slice(start, start + _BLOCK)
        logits = head.logits(states[block], post_norm=post_norm)
        best.append(logits.argmax(1))
        if likelihood:
            own = logits.gather(1, targets[1][block, None]).squeeze(1)
            following.append(own - logits.logsumexp(1))
    predicted = torch.cat(best)
    right = {shift: predicted == targets[shift] for shift in SHIFTS}
    by_shift = {shift: float(right[shift].float().mean()) for shift in SHIFTS}
    top = max(SHIFTS, key=by_shift.__getitem__)
    everywhere = torch.ones_like(right[1])
    stands_out = all(
        stands_above(right[top], right[other], everywhere, log_alpha)
        for other in SHIFTS
        if other != top
    )
    return NextToken(
        by_shift=by_shift,
        shift=top if stands_out else None,
        right=right[1],
        logprob=torch.cat(following) if likelihood else None,
    )


def _among(head: TargetHead, targets: dict[int, Tensor]) -> tuple[TargetHead, dict[int, Tensor]]:
    """The head's rows of the tokens to choose from, where the targets are, and their places."""
    import torch

    others = torch.linspace(0, head.vocab_size - 1, min(OTHERS, head.vocab_size)).long()
    tokens = torch.unique(torch.cat([*targets.values(), others]))
    places = {shift: torch.searchsorted(tokens, target) for shift, target in targets.items()}
    some = replace(head, lm_head=head.lm_head[tokens])
    return some.to(tokens.device), places


def reads_better(one: NextToken, other: NextToken, log_alpha: float) -> bool:
    """Whether the same states read one way clearly foretell more than read the other way.

    Likelihood alone would not do: a reading that only inflates the logits gains on text that
    is easy to foretell. So it must name more of the tokens that follow, too.
    """
    import torch

    if one.logprob is None or other.logprob is None:
        return False
    gain = float((one.logprob - other.logprob).mean())
    everywhere = torch.ones_like(one.right)
    return gain > MARGIN_NATS and stands_above(one.right, other.right, everywhere, log_alpha)


def is_trained(head: TargetHead) -> bool:
    """Whether lm_head has structure: its spectrum passes the edge of random numbers' spectrum.

    For independent entries of deviation s, the largest singular value of an [n, H] matrix lies
    at s (sqrt(n) + sqrt(H)) (Marchenko and Pastur, 1967); training leaves directions far above.
    """
    import torch

    count = min(_SPECTRUM_ROWS, head.vocab_size)
    picked = torch.linspace(0, head.vocab_size - 1, count).long()
    rows = head.lm_head[picked].float()
    rows = rows - rows.mean(0)
    gram = rows @ rows.T if count < rows.shape[1] else rows.T @ rows
    largest = float(torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt())
    edge = float(rows.std()) * (count**0.5 + rows.shape[1] ** 0.5)
    return bool(largest > TRAINED_RATIO * edge)
