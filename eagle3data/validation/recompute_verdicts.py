"""From rows that are not their own to findings: per sample, or once for the whole set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.sample import Sample
from eagle3data.validation.compared_layer import ComparedLayer, Stretch, stretches
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.recompute_set import (
    LayerOfSet,
    lone_dimensions,
    lone_rows,
    off_findings,
    words_of_offness,
)
from eagle3data.validation.row_causes import STRANGE, Cause
from eagle3data.validation.row_errors import NEARER
from eagle3data.validation.significance import FALSE_ALARM, log_threshold

_OWNER_ERROR = 0.3
"""Share of a stranger's distance that projections of equal rows stay below."""
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class _Wrong:
    """A stretch of rows of one layer of one sample that are not their own."""

    compared: ComparedLayer
    stretch: Stretch

    @property
    def layer(self) -> int:
        return self.compared.layer

    @property
    def sample(self) -> int:
        return self.compared.sample


class RecomputeVerdicts:
    """What the compared layers of all recomputed samples come to.

    Attributes:
        findings: what is wrong.
        undecided: questions that stayed open.
        of_set: each captured layer in all samples.
    """

    def __init__(
        self, dataset: Dataset, samples: Sequence[Sample], compared: Sequence[ComparedLayer]
    ) -> None:
        """Judge.

        Args:
            dataset: opened.
            samples: recomputed, without their states.
            compared: every layer of each.
        """
        self.dataset = dataset
        self.samples = samples
        self.compared = compared
        self.layers = dataset.manifest.layers
        self.undecided: list[str] = []
        self.of_set = {
            layer: LayerOfSet(layer=layer, compared=self.of(layer)) for layer in self.layers
        }
        wrong = self._wrong_stretches()
        everywhere = self._of_nearly_every_sample(wrong)
        elsewhere = [one for one in wrong if one not in everywhere]
        self.findings = [
            *self._findings_of_the_set(everywhere),
            *self._findings_of_samples(elsewhere),
            *self._together(wrong),
        ]

    def of(self, layer: int) -> list[ComparedLayer]:
        """A layer in all samples."""
        return [one for one in self.compared if one.layer == layer]

    def _wrong_stretches(self) -> list[_Wrong]:
        log_alpha = log_threshold(sum(len(one.causes) for one in self.compared))
        found = []
        for one in self.compared:
            found += [
                _Wrong(compared=one, stretch=self._told_apart(one, stretch))
                for stretch in stretches(one, self.of_set[one.layer].allowed, log_alpha)
            ]
        return found

    def _told_apart(self, one: ComparedLayer, stretch: Stretch) -> Stretch:
        """Of strange rows: whether they are another recomputed sample's, or nobody's."""
        if stretch.cause != STRANGE:
            return stretch
        rows = slice(*stretch.rows)
        for other in self.of(one.layer):
            theirs = other.right[rows]
            if other.sample == one.sample or 2 * len(theirs) < stretch.bad:
                continue
            size = theirs.norm(dim=1).clamp(min=1e-30)
            error = (one.stored[rows][: len(theirs)] - theirs).norm(dim=1) / size
            if float(error.median()) < _OWNER_ERROR * one.stranger:
                name = self.samples[other.sample].sample_id
                words = f"they are those of sample {name}"
                return replace(stretch, cause=Cause("swapped_samples", other.sample, words))
        unlike = float(one.error[rows].median()) > NEARER * one.stranger
        if stretch.whole and unlike and not one.dimensions:
            words = "they are no nearer to the model's than another token's are"
            return replace(stretch, cause=Cause("swapped_samples", -1, words))
        return stretch

    def _of_nearly_every_sample(self, wrong: Sequence[_Wrong]) -> list[_Wrong]:
        """Those whose layer is wrong from end to end, in the same way, in most samples.

        A sample of one token, or of the same token over and over, can't show a shift.
        """
        if len(self.samples) == 1:
            return []
        found = []
        for group in _grouped(wrong, lambda one: (one.stretch.cause, one.layer)).values():
            whole = [one for one in group if one.stretch.whole]
            if whole and self.of_set[whole[0].layer].is_of_set(len({w.sample for w in whole})):
                found += whole
        return found

    def _findings_of_the_set(self, wrong: Sequence[_Wrong]) -> list[Finding]:
        return [
            Finding(
                kind=part[0].stretch.cause.kind,
                layer=layer,
                detail=f"in {len({one.sample for one in part})} of {len(self.samples)} recomputed "
                f"samples: {_detail(part)}.",
                expected=self.of_set[part[0].layer].expected,
                advice="Extract again.",
                chance=FALSE_ALARM,
            )
            for group in _grouped(wrong, lambda one: one.stretch.cause).values()
            for layer, part in self._by_layer(group)
        ]

    def _findings_of_samples(self, wrong: Sequence[_Wrong]) -> list[Finding]:
        found = []
        for (sample, _), group in _grouped(
            wrong, lambda one: (one.sample, one.stretch.cause)
        ).items():
            name = self.samples[sample].sample_id
            for layer, part in self._by_layer(group):
                rows = [one.stretch.rows for one in part]
                whole = any(one.stretch.whole for one in part)
                found.append(
                    Finding(
                        kind=part[0].stretch.cause.kind,
                        sample_id=name,
                        shard=self._shard(name),
                        layer=layer,
                        token_range=None
                        if whole
                        else (min(first for first, _ in rows), max(last for _, last in rows)),
                        detail=f"recomputed: {_detail(part)}.",
                        expected=self.of_set[part[0].layer].expected,
                        advice=REPAIR,
                        chance=FALSE_ALARM,
                    )
                )
        return found

    def _by_layer(self, group: Sequence[_Wrong]) -> list[tuple[int | None, list[_Wrong]]]:
        """All of a group as one, where it is in every layer; else each layer by itself."""
        by_layer = _grouped(group, lambda one: one.layer)
        if len(by_layer) == len(self.layers):
            return [(None, list(group))]
        return list(by_layer.items())

    def _together(self, wrong: Sequence[_Wrong]) -> list[Finding]:
        """What is off in all samples, and too little to show in one."""
        known = {
            layer: {one.sample for one in wrong if one.layer == layer} for layer in self.layers
        }
        off = [
            self.of_set[layer] for layer in self.layers if self.of_set[layer].is_off(known[layer])
        ]
        found: list[Finding] = []
        if self.dataset.manifest.target.quantization is None:
            found = off_findings(off, every=len(off) == len(self.layers))
        else:
            self.undecided += [
                f"Recomputing: {words_of_offness(layer)}. Engines run a quantized target each in "
                "its own way; whether that is all can't be told."
                for layer in off
            ]
        for layer in self.of_set.values():
            if layer not in off:
                found += lone_dimensions(layer, known[layer.layer], self._place)
                found += lone_rows(layer, known[layer.layer])
        return found

    def _place(self, sample: int) -> tuple[str, int]:
        name = self.samples[sample].sample_id
        return name, self._shard(name)

    def _shard(self, name: str) -> int:
        offset = int(self.dataset.index["token_offset"].to_numpy()[self.dataset.position(name)])
        return self.dataset.manifest.storage.axis.shard_of(offset)


def _detail(part: Sequence[_Wrong]) -> str:
    one = part[0]
    errors = [float(w.compared.error[slice(*w.stretch.rows)].median()) for w in part]
    bad, rows = one.stretch.bad, one.stretch.rows
    said = (
        f"{bad:,} of {rows[1] - rows[0]:,} rows at layer {one.layer} are not the model's "
        f"(off by {np.median(errors):.0%}, median)"
    )
    return f"{said}; {words}" if (words := _words(one)) else said


def _words(one: _Wrong) -> str:
    cause = one.stretch.cause
    if cause.kind == "shifted":
        return f"row t holds the state of token t{cause.number:+d}"
    if cause.kind == "scaled":
        scale = one.compared.scale[slice(*one.stretch.rows)]
        low, high = (float(scale.quantile(q)) for q in (0.1, 0.9))
        if high - low < 0.1 * abs(high):
            return f"they are the model's times {float(scale.median()):.3g}"
        return f"each is the model's times a number of its own, {low:.3g} to {high:.3g}"
    return cause.words or (one.compared.dimensions if cause == STRANGE else "")


def _grouped(wrong: Sequence[_Wrong], key: Callable[[_Wrong], _Key]) -> dict[_Key, list[_Wrong]]:
    groups: dict[_Key, list[_Wrong]] = {}
    for one in wrong:
        groups.setdefault(key(one), []).append(one)
    return groups
