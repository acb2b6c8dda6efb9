"""What is kept of one layer of one recomputed sample, once its states are let go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from eagle3data.validation.row_causes import STRANGE, Cause
from eagle3data.validation.row_errors import RowErrors
from eagle3data.validation.significance import is_above

if TYPE_CHECKING:
    from torch import Tensor

GAP = 16
"""Right rows that end a stretch of wrong ones."""
RATE = 0.02
"""Share of right rows beyond the limit that is allowed for: ten times what was ever seen."""
SKETCH = 64
_MOSTLY_UNLIKE = 0.9
_BY_SIZE = (STRANGE.kind, "scaled")
"""Causes that only the size of the error speaks for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedLayer:
    """One layer of one sample.

    Attributes:
        sample: its number among the recomputed ones.
        layer: canonical id.
        error: `[T]` relative error of each row.
        unit: `[T]` relative error that rounding may make of each row.
        units: `[T]` each row's error in units of that.
        scale: `[T]` the factor by which each row fits best.
        causes: `[T]` what each row is; None for a right one.
        stranger: median error of a row against another token's.
        dimensions: a clause, where only some dimensions of strange rows differ.
        unlike: dimensions that differ in rows which are right as a whole.
        width: H.
        stored, right: `[T, SKETCH]` projections of the rows, to know them again by.
    """

    sample: int
    layer: int
    error: Tensor
    unit: Tensor
    units: Tensor
    scale: Tensor
    causes: list[Cause | None]
    stranger: float
    dimensions: str
    unlike: list[int]
    width: int
    stored: Tensor
    right: Tensor

    @classmethod
    def of(
        cls, sample: int, layer: int, rows: RowErrors, causes: list[Cause | None]
    ) -> ComparedLayer:
        """Keep what the verdicts need."""
        import torch

        strange = torch.tensor([cause == STRANGE for cause in causes])
        generator = torch.Generator().manual_seed(0)
        projection = torch.randn(rows.right.shape[1], SKETCH, generator=generator)
        return cls(
            sample=sample,
            layer=layer,
            error=rows.error,
            unit=rows.unit,
            units=rows.units,
            scale=rows.scale,
            causes=causes,
            stranger=rows.stranger,
            dimensions=_dimensions(rows, strange),
            unlike=rows.unlike_dimensions(torch.tensor([cause is None for cause in causes])),
            width=rows.right.shape[1],
            stored=torch.nan_to_num(rows.stored, nan=0.0, posinf=0.0, neginf=0.0) @ projection,
            right=rows.right @ projection,
        )


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rows of one layer that are not their own.

    Attributes:
        rows: first and past-the-last token within the sample.
        whole: whether that is all of it.
        bad: how many of them are wrong.
        cause: what most of them are.
    """

    rows: tuple[int, int]
    whole: bool
    bad: int
    cause: Cause


def stretches(compared: ComparedLayer, allowed: float, log_alpha: float) -> list[Stretch]:
    """The wrong stretches of a layer.

    A row that is another known row proves itself. A row that is merely too far off may be one on
    which rounding was unkind: only a run of them, which rounding doesn't make, counts.

    Args:
        compared: the layer.
        allowed: units that a right row of the set may be off by.
        log_alpha: log threshold of one test.
    """
    units = compared.units.tolist()
    causes = [
        None if cause == STRANGE and units[at] <= allowed else cause
        for at, cause in enumerate(compared.causes)
    ]
    at = [row for row, cause in enumerate(causes) if cause is not None]
    if not at:
        return []
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(at)) if b - a > GAP), len(at)]
    found = [_stretch(at[low:high], causes) for low, high in pairwise(cuts)]
    found = [
        stretch
        for stretch in found
        if stretch.cause.kind not in _BY_SIZE
        or is_above(stretch.bad, stretch.rows[1] - stretch.rows[0], RATE, log_alpha)
    ]
    loose = [stretch for stretch in found if stretch.cause == STRANGE]
    if not loose:
        return found
    first, last = loose[0].rows[0], loose[-1].rows[1]
    bad = sum(stretch.bad for stretch in loose)
    if 2 * bad < last - first:
        return found
    # One fault; that some rows between are less off is no end of it.
    whole = first <= GAP and last >= len(causes) - GAP and 2 * bad >= len(causes)
    one = Stretch(rows=(first, last), whole=whole, bad=bad, cause=STRANGE)
    return [one, *(stretch for stretch in found if stretch not in loose)]


def _stretch(rows: list[int], causes: list[Cause | None]) -> Stretch:
    cause = _common([cause for row in rows if (cause := causes[row]) is not None])
    margin = abs(cause.number) if cause.kind == "shifted" else 1
    return Stretch(
        rows=(rows[0], rows[-1] + 1),
        whole=rows[0] <= margin and rows[-1] >= len(causes) - 1 - margin,
        bad=len(rows),
        cause=cause,
    )


def _common(causes: list[Cause]) -> Cause:
    """What most rows of a stretch are."""
    cause, count = Counter(causes).most_common(1)[0]
    if 2 * count > len(causes):
        return cause
    moved = sum(cause.kind == "shifted" for cause in causes)
    if 2 * moved >= len(causes):
        return Cause("states_differ", 1, "they are rows of this sample in another order")
    return STRANGE


def dimensions_clause(at: Sequence[int], of: int) -> str:
    """Dimensions in words, such as `3 of 576 dimensions differ, between 7 and 90`."""
    where = f" differ, between {at[0]} and {at[-1]}" if len(at) > 1 else f" differs: {at[0]}"
    return f"{len(at):,} of {of:,} dimensions{where}"


def _dimensions(rows: RowErrors, strange: Tensor) -> str:
    """A clause, where only some dimensions of the strange rows differ."""
    at, of = rows.unlike_dimensions(strange), rows.right.shape[1]
    return dimensions_clause(at, of) if 0 < len(at) <= _MOSTLY_UNLIKE * of else ""
