"""The identity probe's verdict on each sample and on stretches of it, by the set's own rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from eagle3data.validation.significance import is_above, is_below
from eagle3data.validation.token_identity import WIDE_SHIFTS, Agreement, Sequences

if TYPE_CHECKING:
    from torch import Tensor

STRETCH_ROWS = 24
"""Testable rows of one stretch of a sample that gets a verdict of its own."""
EXPECTED_SHARE = 2 / 3
"""A right sample agrees at least this share of what the set's samples usually do."""
PARTLY_RIGHT = 0.4
"""A wrong sample that agrees more than this share of the usual may be wrong in a part only."""
_OTHER_SHIFTS = [shift for shift in WIDE_SHIFTS if shift]
SUSPICION = math.log(1e-3)
"""Log threshold below which a sample is worth asking whose states it holds."""


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A sample, or a stretch of one, whose rows don't predict its tokens.

    Attributes:
        sample: its number among the probed ones.
        rows: first and past-the-last token within the sample.
        whole: whether that is all of it.
        shift: rows belong this many tokens further on than the set's do; None for a stranger's.
        agreement: share of the testable rows that predict their own token.
        tested: how many those are.
        sure: whether that is proof by itself; if not, it is only with the true owner found.
    """

    sample: int
    rows: tuple[int, int]
    whole: bool
    shift: int | None
    agreement: float
    tested: int
    sure: bool = True


class SampleJudge:
    """Verdicts on samples at one layer, by that layer's own rates over the set."""

    def __init__(self, found: Agreement, sequences: Sequences, log_alpha: float) -> None:
        import torch

        self.sequences = sequences
        self.log_alpha = log_alpha
        base = found.shift or 0
        self.testable = found.testable
        says = (found.predicted >= 0) & ~sequences.repeating  # there, every shift fits
        self.matches = {
            shift: (found.predicted == sequences.shifted(base + shift)) & says
            for shift in WIDE_SHIFTS
        }
        own = self.matches[0]
        others = torch.stack([self.matches[shift] for shift in _OTHER_SHIFTS])
        self._only_there = _counted(others & ~own)
        self._only_here = _counted(own & ~others)
        counts = torch.zeros(2, len(sequences)).index_add_(
            1, sequences.sample_of, torch.stack([found.right, found.testable]).float()
        )
        enough = counts[1] >= STRETCH_ROWS / 2
        self.enough = int(enough.sum())
        """Samples with rows enough for a verdict of their own."""
        shares = counts[0][enough] / counts[1][enough]
        self.typical = float(shares.median()) if self.enough else 0.0
        said = found.predicted[found.testable & (found.predicted >= 0)]
        true = sequences.shifted(base)[found.testable]
        size = int(sequences.ids.max()) + 1
        self.chance = float(
            torch.bincount(said, minlength=size).double()
            @ torch.bincount(true, minlength=size).double()
            / max(len(said) * len(true), 1)
        )

    def doubts(self) -> list[Doubt]:
        """Each sample that is wrong as a whole, and each wrong stretch of the others."""
        found = []
        for sample in range(len(self.sequences)):
            span = self.sequences.rows(sample)
            whole = self._judge(sample, span.start, span.stop, whole=True)
            whole = whole or self._judge(sample, span.start, span.stop, whole=True, own=True)
            found += self._parts(whole, span) if whole else self._stretches(sample, span)
        return found

    def _parts(self, whole: Doubt, span: slice) -> list[Doubt]:
        """Where a wrong sample is wrong: its stretches, if the rest of it is right."""
        if whole.shift is None or whole.agreement < PARTLY_RIGHT * self.typical:
            return [whole]
        return self._stretches(whole.sample, span) or [whole]

    def _stretches(self, sample: int, span: slice) -> list[Doubt]:
        at = self.testable[span].nonzero().flatten()
        if len(at) < 2 * STRETCH_ROWS:
            return []
        last = len(at) - STRETCH_ROWS // 2  # a short rest belongs to the stretch before it
        starts = [span.start + int(at[i]) for i in range(0, last, STRETCH_ROWS)]
        found: list[Doubt] = []
        for start, stop in zip(starts, [*starts[1:], span.stop], strict=True):
            doubt = self._judge(sample, start, stop, whole=False)
            if doubt is None:
                continue
            before = found[-1] if found else None
            if before and before.rows[1] == doubt.rows[0] and before.shift == doubt.shift:
                found[-1] = _joined(before, doubt)
            else:
                found.append(doubt)
        return found

    def _judge(
        self, sample: int, start: int, stop: int, *, whole: bool, own: bool = False
    ) -> Doubt | None:
        """Judge rows; with `own`, only those whose context no other sample shares.

        A stranger that begins with the same system prompt has the right states there.
        """
        rows = slice(start, stop)
        testable = self.testable[rows]
        if own:
            testable = testable & ~self.sequences.shared[rows]
        tested, right = int(testable.sum()), int((self.matches[0][rows] & testable).sum())
        first = self.sequences.bounds[sample]
        place = (start - first, stop - first)
        agreement = right / max(tested, 1)
        shift = self._better_shift(rows)
        usual = self.typical * EXPECTED_SHARE
        by_chance = tested * self.chance
        strange = right <= by_chance + 4 * by_chance**0.5 + 2 and is_below(
            right, tested, usual, SUSPICION
        )
        if shift is None and not strange:
            return None
        return Doubt(
            sample=sample,
            rows=place,
            whole=whole,
            shift=shift,
            agreement=agreement,
            tested=tested,
            sure=shift is not None or is_below(right, tested, usual, self.log_alpha),
        )

    def _better_shift(self, rows: slice) -> int | None:
        # A clean row agrees at another place by chance, at its own with the typical rate; the
        # floor keeps a handful of rows from deciding.
        rate = max(0.1, 3 * self.chance / max(self.typical, 1e-6))
        if rate >= 0.5:
            return None
        best, best_count = None, 0
        there = self._only_there[:, rows.stop] - self._only_there[:, rows.start]
        here = self._only_here[:, rows.stop] - self._only_here[:, rows.start]
        for at in np.flatnonzero(there > here).tolist():
            count = int(there[at])
            trials = count + int(here[at])
            if count > best_count and is_above(count, trials, rate, self.log_alpha):
                best, best_count = _OTHER_SHIFTS[at], count
        return best


def _counted(flags: Tensor) -> npt.NDArray[np.int64]:
    """`[S, R + 1]`: how many of `[S, R]` flags are set before each row."""
    counts = np.zeros((flags.shape[0], flags.shape[1] + 1), dtype=np.int64)
    np.cumsum(flags.numpy(), axis=1, out=counts[:, 1:])
    return counts


def _joined(first: Doubt, second: Doubt) -> Doubt:
    tested = first.tested + second.tested
    right = first.agreement * first.tested + second.agreement * second.tested
    return Doubt(
        sample=first.sample,
        rows=(first.rows[0], second.rows[1]),
        whole=False,
        shift=first.shift,
        agreement=right / max(tested, 1),
        tested=tested,
        sure=first.sure or second.sure,
    )
