"""Samples, ranges of positions and dimensions whose magnitudes are unlike the rest of the set's.

A number is unlike the rest where two things hold. It lies beyond what the set's own numbers allow:
their tail, followed on from its 75th percentile as an exponential (so a quarter of a set may be
wrong), is not met by chance. And it lies beyond the rows of one sample: texts of another kind or
language differ from each other, but not by more than the words of one text do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagle3data.validation.row_facts import FIRST_ROWS, Floats, RowFacts
from eagle3data.validation.token_identity import Sequences

WINDOW = 16
FEWEST_SAMPLES = 8
"""With fewer there is no rest to be unlike."""
_FEWEST_ROWS = 8
_QUANTILE = 0.75
_TIMES_WITHIN = 1.5
_FEWEST_TIMES = math.log(50)
"""Texts of another kind change single dimensions tenfold; this is far beyond."""
_COMMON = 3
"""Samples that must break at one position before it is the set's."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Unlike:
    """Rows whose typical magnitude is not the rest's.

    Attributes:
        sample: its number among the probed ones; None for every sample that is long enough.
        rows: first and past-the-last position; None for the whole sample.
        factor: their rms over the rest's.
        limit: the factor that nothing of the rest reaches, above 1.
    """

    sample: int | None
    rows: tuple[int, int] | None
    factor: float
    limit: float


def reach(deviations: Doubles, log_alpha: float) -> float:
    """How far from 0 chance alone takes one of some deviations, by their own tail."""
    size = np.abs(deviations)
    return float(np.quantile(size, _QUANTILE)) * log_alpha / math.log(1 - _QUANTILE)


class Magnitudes:
    """The row norms of one layer of the probed samples, in log space."""

    def __init__(self, facts: RowFacts, sequences: Sequences, log_alpha: float) -> None:
        self._sequences, self._log_alpha = sequences, log_alpha
        self._ids = sequences.ids.numpy()
        self._rows = [_behind_first(facts.log_rms, sequences, at) for at in range(len(sequences))]
        self._typical = np.array([_median(rows) for rows in self._rows])
        within = np.concatenate([_from_nearby(rows) for rows in self._rows])
        self._usual = float(np.quantile(within, 0.99)) if len(within) else math.inf
        self.within = _TIMES_WITHIN * self._usual
        """Half as much again as one row in a hundred differs by (log) from those about it."""
        known = self._typical[np.isfinite(self._typical)]
        self._centre = float(np.median(known)) if len(known) else math.nan
        self._enough = len(known) >= FEWEST_SAMPLES

    def unlike(self) -> list[Unlike]:
        """Samples, and ranges of positions in the others."""
        if not self._enough:
            return []
        whole = self._samples()
        return [*whole, *self._ranges({found.sample for found in whole}), *self._breaks()]

    def _limit(self, deviations: Doubles) -> float:
        return max(self.within, reach(deviations, self._log_alpha))

    def _samples(self) -> list[Unlike]:
        off = self._typical - self._centre
        limit = self._limit(off[np.isfinite(off)])
        return [
            Unlike(sample=sample, rows=None, factor=math.exp(off[sample]), limit=math.exp(limit))
            for sample in np.flatnonzero(np.abs(np.nan_to_num(off)) > limit).tolist()
            if self._is_varied(sample, FIRST_ROWS, len(self._rows[sample]) + FIRST_ROWS)
        ]

    def _is_varied(self, sample: int, start: int, stop: int) -> bool:
        """One token over and over has norms of its own; the rest says nothing of it."""
        first = self._sequences.bounds[sample]
        tokens = self._ids[first + start : first + stop]
        return len(np.unique(tokens)) >= min(len(tokens), WINDOW) / 2

    def _windows(self, sample: int) -> Doubles:
        """Medians of the sample's windows, from its first rows on."""
        rows = self._rows[sample]
        whole = rows[: len(rows) // WINDOW * WINDOW].reshape(-1, WINDOW)
        found: Doubles = np.median(whole, axis=1) - self._centre
        return found

    def _ranges(self, without: set[int | None]) -> Iterator[Unlike]:
        windows = [self._windows(sample) for sample in range(len(self._rows))]
        together = np.concatenate(windows)
        together = together[np.isfinite(together)]
        if not len(together):
            return
        limit = self._limit(together)
        for sample, off in enumerate(windows):
            if sample in without:
                continue
            for start, stop in _runs(np.abs(np.nan_to_num(off)) > limit):
                rows = (FIRST_ROWS + start * WINDOW, FIRST_ROWS + stop * WINDOW)
                if self._is_varied(sample, *rows):
                    factor = math.exp(float(np.median(off[start:stop])))
                    yield Unlike(sample=sample, rows=rows, factor=factor, limit=math.exp(limit))

    def _breaks(self) -> Iterator[Unlike]:
        """Positions at which many samples' magnitudes change at once, whatever their texts."""
        windows = [self._windows(sample) for sample in range(len(self._rows))]
        longest = max(len(one) for one in windows)
        jumps = np.full((len(windows), max(longest - 2, 0)), np.nan)
        for sample, one in enumerate(windows):
            if len(one) > 2:
                jumps[sample, : len(one) - 2] = one[2:] - one[:-2]
        enough = np.isfinite(jumps).sum(0) >= _COMMON
        if enough.sum() < FEWEST_SAMPLES:
            return
        common = np.zeros(jumps.shape[1])
        common[enough] = np.nanmedian(jumps[:, enough], axis=0)
        limit = max(self._usual, reach(common[enough], self._log_alpha))
        for start, stop in _runs(np.abs(common) > limit):
            strongest = start + int(np.abs(common[start:stop]).argmax())
            yield Unlike(
                sample=None,
                rows=(FIRST_ROWS + (start + 1) * WINDOW, FIRST_ROWS + (stop + 2) * WINDOW),
                factor=math.exp(common[strongest]),
                limit=math.exp(limit),
            )


def _behind_first(log_rms: Floats, sequences: Sequences, sample: int) -> Doubles:
    rows = log_rms[sequences.rows(sample)][FIRST_ROWS:].astype(np.float64)
    return np.where(np.isfinite(rows), rows, np.nan)


def _from_nearby(rows: Doubles) -> Doubles:
    """How far rows are from the median of the window that they are in."""
    if len(rows) < _FEWEST_ROWS:
        return rows[:0]
    width = min(WINDOW, len(rows))
    windows = rows[: len(rows) // width * width].reshape(-1, width)
    off = np.abs(windows - np.median(windows, axis=1, keepdims=True)).ravel()
    found: Doubles = off[np.isfinite(off)]
    return found


def _median(rows: Doubles) -> float:
    """NaN for too few rows, or any that is zero or not finite: other checks say so."""
    return float(np.median(rows)) if len(rows) >= _FEWEST_ROWS else math.nan


def _runs(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and past-the-last place of each run of flags that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]])))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def unlike_dimensions(
    facts: RowFacts, varied: npt.NDArray[np.bool_], log_alpha: float
) -> list[tuple[int, int, float]]:
    """Samples with a dimension whose magnitude is unlike the same dimension's elsewhere.

    Args:
        facts: of one layer.
        varied: `[n]` samples of many different tokens; the others are left out.
        log_alpha: threshold of a single sample.

    Returns:
        `(sample, dimension, factor)` of the dimension that is furthest off.
    """
    with np.errstate(all="ignore"):
        spread = np.maximum(facts.spread.astype(np.float64), -30.0)
    good = np.isfinite(spread).all(1) & varied
    if good.sum() < FEWEST_SAMPLES:
        return []
    off = spread[good] - np.median(spread[good], axis=0)
    off -= np.median(off, axis=1, keepdims=True)
    furthest = np.abs(off).max(1)
    centre = float(np.median(furthest))
    limit = centre + max(_FEWEST_TIMES, reach(furthest - centre, log_alpha))
    found = []
    for at in np.flatnonzero(furthest > limit):
        dimension = int(np.abs(off[at]).argmax())
        sample = int(np.flatnonzero(good)[at])
        found.append((sample, dimension, math.exp(off[at, dimension])))
    return found
