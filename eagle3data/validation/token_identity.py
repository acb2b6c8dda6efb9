"""The token-identity probe: a state says which token it was made from. Needs no weights.

The nearest class mean (cosine, per-dimension standardised) predicts a row's own token id, at
the lowest captured layer almost always and at the final one often. Means are fitted on half
of the samples and tested on the other half, so no row matches itself. For the set it asks
which shift between states and tokens fits best, with means refitted for each shift;
`sample_verdicts` asks the same of each sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from eagle3data.validation.row_features import RowFeatures, unit_rms
from eagle3data.validation.significance import is_above

if TYPE_CHECKING:
    from torch import Tensor

SHIFTS = tuple(range(-2, 3))
WIDE_SHIFTS = tuple(range(-8, 9))
MAX_CLASSES = 512
MIN_OCCURRENCES = 4
LONGEST_PERIOD = 8
_MOMENT_SAMPLES = 48
_BLOCK = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequences:
    """Token ids of the probed samples, back to back.

    Attributes:
        ids: `[R]` int64.
        bounds: first row of each sample, and R: `[n + 1]`.
    """

    ids: Tensor
    bounds: list[int]

    @classmethod
    def of(cls, samples: Sequence[Sequence[int]]) -> Sequences:
        import torch

        bounds = [0]
        for sample in samples:
            bounds.append(bounds[-1] + len(sample))
        flat = [token for sample in samples for token in sample]
        return cls(ids=torch.tensor(flat, dtype=torch.int64), bounds=bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def rows(self, sample: int) -> slice:
        return slice(self.bounds[sample], self.bounds[sample + 1])

    @cached_property
    def sample_of(self) -> Tensor:
        """`[R]` which sample a row belongs to."""
        import torch

        sizes = torch.tensor(self.bounds).diff()
        return torch.arange(len(self)).repeat_interleave(sizes)

    @cached_property
    def place(self) -> Tensor:
        """`[R]` position of a row within its sample."""
        import torch

        starts = torch.tensor(self.bounds[:-1])
        return torch.arange(self.bounds[-1]) - starts[self.sample_of]

    def shifted(self, shift: int) -> Tensor:
        """`[R]` the token `shift` places after each row's own, -1 beyond its sample."""
        import torch

        lengths = torch.tensor(self.bounds).diff()[self.sample_of]
        inside = (self.place + shift >= 0) & (self.place + shift < lengths)
        at = torch.arange(self.bounds[-1]).add_(shift).clamp_(0, self.bounds[-1] - 1)
        return torch.where(inside, self.ids[at], -1)

    @cached_property
    def repeating(self) -> Tensor:
        """`[R]` bool: rows inside a repetition, whose last tokens are those just before once more.

        The states of one token over and over converge to what says "repeated", not which token.
        """
        import torch

        found = torch.zeros(self.bounds[-1], dtype=torch.bool)
        for period in range(1, min(LONGEST_PERIOD, self.bounds[-1]) + 1):
            again = (self.shifted(-period) == self.ids).long()
            # Adjacent rows up to each that are equal to those `period` before.
            total = again.cumsum(0)
            last_break = torch.where(again == 0, total, 0).cummax(0).values
            found |= total - last_break >= max(period, 2)
        return found

    @cached_property
    def shared(self) -> Tensor:
        """`[R]` bool: rows whose whole context another sample begins with too.

        Such rows (a common system prompt) hold the same states in every sample, whose place
        a wrongly shifted label can be learnt from as well as a right one.
        """
        import torch

        shared = torch.zeros(self.bounds[-1], dtype=torch.bool)
        texts = [self.ids[self.rows(sample)].tolist() for sample in range(len(self))]
        order = sorted(range(len(self)), key=texts.__getitem__)
        for left, right in itertools.pairwise(order):
            common = _common_prefix(texts[left], texts[right])
            for sample in (left, right):
                shared[self.bounds[sample] : self.bounds[sample] + common] = True
        return shared


def _common_prefix(left: list[int], right: list[int]) -> int:
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return at
    return min(len(left), len(right))


def features(read: Callable[[int], Tensor], samples: int) -> tuple[Tensor, Tensor]:
    """Comparable rows of one layer (`RowFeatures`), and what each sample's are on average.

    Args:
        read: a sample's number to its `[T, H]` states, any float dtype.
        samples: how many there are.

    Returns:
        `[R, D]` float32 features (zero where a row is zero or not finite) and `[n, H]` float32,
        each sample's mean row at unit rms.
    """
    import torch

    step = max(1, samples // _MOMENT_SAMPLES)
    fit = RowFeatures.fitted(torch.cat([read(sample)[1:] for sample in range(0, samples, step)]))
    rows, profiles = [], []
    for sample in range(samples):
        states = unit_rms(read(sample))
        profiles.append(states[1:].mean(0) if len(states) > 1 else states[0])
        rows.append(fit.of_unit_rows(states))
    return torch.cat(rows), torch.stack(profiles)


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """What the identity probe says of one layer of the whole set.

    Attributes:
        by_shift: share of rows whose predicted token is the one `shift` places on.
        tested: rows tested at shift 0.
        shift: the shift that fits best, or None where none stands out.
        right: `[R]` bool, rows that predict the token at `shift` (at 0 where None).
        testable: `[R]` bool, rows that could.
        predicted: `[R]` int64, the predicted token; -1 where there is none.
    """

    by_shift: dict[int, float]
    tested: int
    shift: int | None
    right: Tensor
    testable: Tensor
    predicted: Tensor


def frequent_tokens(sequences: Sequences) -> Tensor:
    """Sorted ids of the tokens that occur often enough, in both halves, to have a mean."""
    import torch

    usable = ~sequences.shared & ~sequences.repeating & (sequences.place > 0)
    counted = []
    for half in (0, 1):
        own = sequences.ids[usable & (sequences.sample_of % 2 == half)]
        tokens, counts = torch.unique(own, return_counts=True)
        counted.append((tokens, counts))
    (first, first_counts), (second, second_counts) = counted
    both = first[torch.isin(first, second)]
    total = first_counts[torch.isin(first, both)] + second_counts[torch.isin(second, both)]
    both, total = both[total >= MIN_OCCURRENCES], total[total >= MIN_OCCURRENCES]
    frequent: Tensor = both[total.argsort(descending=True)[:MAX_CLASSES]].sort().values
    return frequent


def measure(rows: Tensor, sequences: Sequences, classes: Tensor, log_alpha: float) -> Agreement:
    """Which shift between a layer's rows and the tokens fits best.

    Args:
        rows: `[R, D]` features.
        sequences: their tokens.
        classes: `frequent_tokens(sequences)`.
        log_alpha: threshold of the paired comparison between the best shift and each other.
    """
    found = _fit_and_test(rows, sequences, classes, SHIFTS, log_alpha)
    if found.shift is None:
        wide = _fit_and_test(rows, sequences, classes, WIDE_SHIFTS, log_alpha)
        found = wide if wide.shift is not None else found
    return found


def _fit_and_test(
    rows: Tensor, sequences: Sequences, classes: Tensor, shifts: Sequence[int], log_alpha: float
) -> Agreement:
    import torch

    right, testable = {}, {}
    informative = ~sequences.shared & ~sequences.repeating & (sequences.place > 0)
    for shift in shifts:
        labels = _labels(sequences, classes, shift)
        testable[shift] = (labels >= 0) & informative
        predicted = _predict(rows, labels.masked_fill(~informative, -1), sequences)
        right[shift] = (predicted == labels) & testable[shift]
    by_shift = {
        shift: float(right[shift].sum() / testable[shift].sum().clamp(min=1)) for shift in shifts
    }
    best = max(shifts, key=by_shift.__getitem__)
    stands_out = all(
        stands_above(right[best], right[other], testable[best] & testable[other], log_alpha)
        for other in shifts
        if other != best
    )
    decided = best if stands_out else None
    # The verdicts on samples use every row of the fit, those in shared contexts too.
    labels = _labels(sequences, classes, decided or 0)
    labels = labels.masked_fill((sequences.place == 0) | sequences.repeating, -1)
    predicted = _predict(rows, labels, sequences)
    tokens = torch.where(predicted >= 0, classes[predicted.clamp(min=0)], -1)
    return Agreement(
        by_shift=by_shift,
        tested=int(testable[0].sum()),
        shift=decided,
        right=(predicted == labels) & (labels >= 0),
        testable=labels >= 0,
        predicted=tokens,
    )


def stands_above(first: Tensor, second: Tensor, common: Tensor, log_alpha: float) -> bool:
    """Paired comparison of two right-or-wrong rows `[R]` on the rows both were tested on."""
    only_first = int((first & ~second & common).sum())
    only_second = int((second & ~first & common).sum())
    return is_above(only_first, only_first + only_second, 0.5, log_alpha)


def _labels(sequences: Sequences, classes: Tensor, shift: int) -> Tensor:
    """`[R]` class number of the token `shift` places on; -1 where it has no class."""
    import torch

    tokens = sequences.shifted(shift)
    at = torch.searchsorted(classes, tokens).clamp_(max=len(classes) - 1)
    return torch.where(classes[at] == tokens, at, -1)


def _predict(rows: Tensor, labels: Tensor, sequences: Sequences) -> Tensor:
    """`[R]` nearest class, each half of the samples against the other half's means."""
    import torch

    predicted = torch.full_like(labels, -1)
    count = int(labels.max()) + 1
    for half in (0, 1):
        mine = sequences.sample_of % 2 == half
        fit = (labels >= 0) & ~mine
        if not bool(fit.any()):
            continue
        means = rows.new_zeros(count, rows.shape[1]).index_add_(0, labels[fit], rows[fit])
        unseen = torch.bincount(labels[fit], minlength=count) == 0
        means = torch.nn.functional.normalize(means, dim=1)
        for block in torch.split(mine.nonzero().flatten(), _BLOCK):
            scores = (rows[block] @ means.T).masked_fill_(unseen, float("-inf"))
            predicted[block] = scores.argmax(1)
    return predicted.masked_fill(rows.abs().amax(1) == 0, -1)
