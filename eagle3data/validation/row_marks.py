"""What was seen of rows, in words; and marks that a layer's numbers bear by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagle3data.validation.findings import Severity
from eagle3data.validation.row_facts import RowFacts
from eagle3data.validation.unlike_rest import Unlike

FEWEST_SMALL = 0.01
"""Of normal numbers 0.05 lie below 1/16 of their rms; of bfloat16's bits read as float16 nearly
none do, since that draws all magnitudes together."""
MOST_AT_THE_TOP = 8
"""Dimensions that reach one largest magnitude to the bit: by chance one or two, or a clip."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One thing seen at one layer.

    Attributes:
        kind: the finding's code.
        sample: number of the probed sample; None for the whole set.
        detail: a sentence, without the layer.
        expected: what should have been there.
        rows: first and past-the-last token, where it is a part of the sample.
        other: number of the sample that it is seen against, if it is one.
        severity: error or warning.
    """

    kind: str
    sample: int | None
    detail: str
    expected: str
    rows: tuple[int, int] | None = None
    other: int | None = None
    severity: Severity = Severity.ERROR


def misread(facts: RowFacts) -> Iterator[Seen]:
    """Samples whose numbers are too much of one size."""
    yield from _set_or_samples(
        np.nan_to_num(facts.small, nan=1.0) < FEWEST_SMALL,
        kind="misread_bits",
        details=[
            f"{share:.2%} of its values are smaller than a sixteenth of their row's rms: bits of "
            "another number format, such as bfloat16's read as float16, look like that."
            for share in facts.small
        ],
        expected="about 5 % or more, as of any values that scatter round zero",
    )


def clipped(facts: RowFacts) -> Iterator[Seen]:
    """Samples whose largest magnitude many dimensions share."""
    yield from _set_or_samples(
        facts.capped >= MOST_AT_THE_TOP,
        kind="clipped",
        details=[
            f"{count} of {facts.spread.shape[1]} dimensions reach its largest magnitude exactly: "
            "larger values were cut off there."
            for count in facts.capped
        ],
        expected="one dimension with the largest value",
    )


def _set_or_samples(
    bad: npt.NDArray[np.bool_], kind: str, details: list[str], expected: str
) -> Iterator[Seen]:
    """One thing of the set if most samples show it, else of each sample that does."""
    if bad.mean() > 1 / 2:
        first = int(np.flatnonzero(bad)[0])
        detail = f"in {int(bad.sum()):,} of {len(bad):,} samples; of the first, {details[first]}"
        yield Seen(kind=kind, sample=None, detail=detail, expected=expected)
        return
    for sample in np.flatnonzero(bad).tolist():
        yield Seen(kind=kind, sample=sample, detail=details[sample], expected=expected)


def unlike(found: Unlike) -> Seen:
    """Magnitudes that are unlike the rest's, in words."""
    limit = (
        f"no other one is beyond a factor of {found.limit:.3g}"
        if math.isfinite(found.limit)
        else ""
    )
    if found.sample is None and found.rows is not None:
        return Seen(
            kind="unlike_rest",
            sample=None,
            detail=f"about token {found.rows[0]} the rows of most samples become "
            f"{found.factor:.3g} times as large, whatever their texts; at other positions "
            f"{limit}.",
            expected="no change at one position in all texts",
            rows=found.rows,
        )
    what = "its rows" if found.rows is None else f"its rows {found.rows[0]} to {found.rows[1]}"
    return Seen(
        kind="unlike_rest",
        sample=found.sample,
        detail=f"{what} are {found.factor:.3g} times as large as the set's usually are; {limit}.",
        expected="magnitudes like the other samples'",
        rows=found.rows,
    )
