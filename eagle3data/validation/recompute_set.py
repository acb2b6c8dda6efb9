"""What only the recomputed samples together show: a layer a little off in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eagle3data.validation.compared_layer import ComparedLayer, dimensions_clause
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.row_causes import STRANGE
from eagle3data.validation.row_errors import LIMIT
from eagle3data.validation.significance import FALSE_ALARM

SPREAD = 3.0
"""An engine whose rows are usually off by more units than this runs another model.

(vLLM against transformers, both in bfloat16: 0.75.)"""
NEARLY_ALL = 0.75
"""Share of the recomputed samples with the same fault that makes it the set's."""
_ENDS = 4
"""Rows at either end of a sample that are compared with those of the other samples."""
_FEW = 3


@dataclass(frozen=True, kw_only=True)
class LayerOfSet:
    """One captured layer in all recomputed samples.

    Attributes:
        layer: canonical id.
        compared: every sample's.
    """

    layer: int
    compared: list[ComparedLayer]

    @cached_property
    def spread(self) -> float:
        """How many units of rounding a row of the set is usually off by."""
        return float(np.median([float(one.units.median()) for one in self.compared]))

    @property
    def allowed(self) -> float:
        """Units that a right row may be off by."""
        return LIMIT * max(1.0, self.spread)

    @property
    def expected(self) -> str:
        """What should have been there, in words."""
        unit = float(np.median([float(one.unit.median()) for one in self.compared]))
        return f"rows within {LIMIT * unit:.1%} of the model's own at layer {self.layer}"

    def is_off(self, known: set[int]) -> bool:
        """Whether its rows are off as a whole, beyond the samples that are known to be wrong."""
        return self.spread > SPREAD and 2 * len(known) < len(self.compared)

    def is_of_set(self, samples: int) -> bool:
        """Whether a fault of so many samples is the set's."""
        return samples >= max(2, NEARLY_ALL * len(self.compared))


def words_of_offness(layer: LayerOfSet) -> str:
    """How far off a layer is, as a clause."""
    error = float(np.median([float(one.error.median()) for one in layer.compared]))
    clauses = Counter(one.dimensions for one in layer.compared if one.dimensions)
    common = clauses.total() * 2 > len(layer.compared)
    where = f" ({clauses.most_common(1)[0][0]})" if common else ""
    return (
        f"over the whole set, rows at layer {layer.layer} are off by {error:.2%} (median), "
        f"{layer.spread:.1f} times what rounding makes there{where}"
    )


def off_findings(off: Sequence[LayerOfSet], *, every: bool) -> list[Finding]:
    """Layers that are off by more than rounding explains.

    Args:
        off: those layers.
        every: whether they are all that were captured.
    """
    return [
        Finding(
            kind=STRANGE.kind,
            layer=None if every else layer.layer,
            detail=f"{words_of_offness(layer)}, though no other row is nearer: other weights, less "
            "precision, or dimensions that are not their own.",
            expected=layer.expected,
            advice="Compare --model's weights with those that made the set.",
            chance=FALSE_ALARM,
        )
        for layer in off[: 1 if every else None]
    ]


def lone_dimensions(
    layer: LayerOfSet, known: set[int], place: Callable[[int], tuple[str, int]]
) -> list[Finding]:
    """Dimensions that are off in rows too large for it to show.

    Args:
        layer: the layer.
        known: samples that are known to be wrong at it.
        place: a sample's number to its id and shard.
    """
    off = [one for one in layer.compared if one.unlike and one.sample not in known]
    whole = layer.is_of_set(len(off))
    found = []
    for one in off[:1] if whole else off:
        name, shard = (None, None) if whole else place(one.sample)
        found.append(
            Finding(
                kind=STRANGE.kind,
                sample_id=name,
                shard=shard,
                layer=layer.layer,
                detail=f"recomputed: in most rows at layer {layer.layer}, "
                f"{dimensions_clause(one.unlike, one.width)}.",
                expected=f"every dimension within {LIMIT:.0f} times its rounding",
                advice="Extract again." if whole else REPAIR,
                chance=FALSE_ALARM,
            )
        )
    return found


def lone_rows(layer: LayerOfSet, known: set[int]) -> list[Finding]:
    """Rows that are strange at the same end of nearly every sample.

    One strange row of one sample may be rounding's; the first of all samples is not.
    """
    others = [one for one in layer.compared if one.sample not in known and len(one.causes) > _ENDS]
    if len(others) < _FEW:
        return []
    counts = Counter(place for one in others for place in _strange_ends(one, layer.allowed))
    return [
        Finding(
            kind=STRANGE.kind,
            layer=layer.layer,
            token_range=(place, place + 1) if place >= 0 else None,
            detail=f"recomputed: the {_ordinal(place)} row at layer {layer.layer} is not the "
            f"model's in {count} of {len(others)} samples.",
            expected=layer.expected,
            advice="Extract again.",
            chance=FALSE_ALARM,
        )
        for place, count in sorted(counts.items())
        if count >= NEARLY_ALL * len(others)
    ]


def _strange_ends(one: ComparedLayer, allowed: float) -> Iterator[int]:
    """Places of strange rows near the ends; negative ones count from the end."""
    from_end = range(-min(_ENDS, len(one.causes) - _ENDS), 0)
    for place in (*range(_ENDS), *from_end):
        if one.causes[place] == STRANGE and float(one.units[place]) > allowed:
            yield place


def _ordinal(place: int) -> str:
    words = ("first", "second", "third", "fourth")
    if place >= 0:
        return words[place]
    return "last" if place == -1 else f"{words[-place - 1]} last"
