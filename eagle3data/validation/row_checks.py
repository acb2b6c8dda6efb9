"""What the rows themselves show, without any weights: unlike the rest, contradicting, repeated.

Each layer is looked at as its states pass by; findings are made at the end, so that one cause in
all layers is one finding, and what the probes explained already is not told twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from eagle3data.validation import duplicates, same_context
from eagle3data.validation.across_layers import AcrossLayers
from eagle3data.validation.findings import REPAIR, Finding, Severity
from eagle3data.validation.measured import RmsByPosition
from eagle3data.validation.probe_set import ProbeSet
from eagle3data.validation.row_facts import RowCollector, RowFacts, rms_by_position
from eagle3data.validation.row_marks import Seen, clipped, misread, unlike
from eagle3data.validation.token_identity import Sequences
from eagle3data.validation.unlike_rest import (
    FEWEST_SAMPLES,
    Magnitudes,
    reach,
    unlike_dimensions,
)

if TYPE_CHECKING:
    from torch import Tensor

Flags = npt.NDArray[np.bool_]

OTHER_ROUNDING = 0.05
EMBEDDINGS = 0.5
_FEWEST_TOKENS = 16
_FEWEST_RIGHT = 3
NAMING = ("shifted", "swapped_samples")
"""Kinds that say what happened to a sample, which makes the others superfluous."""
AGAIN = "Extract again."


class RowChecks:
    """The checks over a probe set, layer by layer."""

    def __init__(self, probe: ProbeSet, sequences: Sequences, log_alpha: float) -> None:
        self._probe, self._sequences, self._log_alpha = probe, sequences, log_alpha
        self._groups = same_context.groups(sequences)
        self._contexts = duplicates.context_digests(sequences)
        self._place = sequences.place.numpy()
        self._varied = np.array(
            [
                len(np.unique(sequences.ids[sequences.rows(sample)].numpy())) >= _FEWEST_TOKENS
                for sample in range(len(sequences))
            ]
        )
        self._seen: dict[int, list[Seen]] = {}
        self._across = AcrossLayers(
            sequences, [probe.mask(position) for position in probe.positions]
        )
        self.within: dict[int, float] = {}
        """By layer, the deviation of row norms (log) that is usual within one sample."""
        self.rms: dict[int, RmsByPosition] = {}

    def collector(self) -> RowCollector:
        """To be shown every sample of a layer."""
        return RowCollector(same_context.wanted_rows(self._groups))

    def look(self, layer: int, facts: RowFacts, right: Flags | None = None) -> None:
        """Check what a collector gathered.

        Args:
            layer: canonical id.
            facts: of its rows.
            right: `[R]` rows that name their own token, by the identity probe.
        """
        magnitudes = Magnitudes(facts, self._sequences, self._log_alpha)
        self.within[layer] = magnitudes.within
        self.rms[layer] = rms_by_position(facts, self._place)
        self._across.look(layer, facts, magnitudes.within)
        self._seen[layer] = [
            *misread(facts),
            *clipped(facts),
            *self._constant(facts),
            *self._rounded(facts),
            *self._contradicting(facts),
            *(self._repeated(facts, right) if layer > 0 else []),
            *(unlike(found) for found in magnitudes.unlike()),
            *self._dimensions(facts),
        ]

    def look_across(self, rows: Mapping[int, Tensor]) -> None:
        """Compare the layers with each other, once all were looked at.

        Args:
            rows: by layer, `[R, H]` states of the same rows.
        """
        for layer, states in rows.items():
            self._across.see_channels(layer, states.float().numpy())
        for layer, seen in self._across.seen().items():
            self._seen[layer] += seen

    def findings(self, known: Iterable[Finding]) -> list[Finding]:
        """One finding for each thing; of all layers alike, one.

        Args:
            known: what the probes found already.
        """
        known = list(known)
        of_set = {finding.layer for finding in known if finding.sample_id is None}
        of_samples = {(finding.sample_id, finding.layer) for finding in known if finding.sample_id}
        grouped: dict[tuple[str, int | None], list[tuple[int, Seen]]] = {}
        for layer, all_seen in self._seen.items():
            named = {seen.sample for seen in all_seen if seen.kind in NAMING}
            for seen in all_seen:
                if seen.sample in named and seen.kind not in NAMING:
                    continue
                if of_set & {None, layer} and seen.kind not in _REGARDLESS:
                    continue  # compared with a rest that is wrong itself
                concerned = {self._id(at) for at in (seen.sample, seen.other) if at is not None}
                if not any(of_samples & {(name, None), (name, layer)} for name in concerned):
                    grouped.setdefault((seen.kind, seen.sample), []).append((layer, seen))
        return [
            finding
            for (_, sample), group in grouped.items()
            for finding in self._merged(sample, group)
        ]

    def _merged(self, sample: int | None, group: list[tuple[int, Seen]]) -> Iterator[Finding]:
        by_layer = dict(reversed(group))  # of a layer the first
        parts = {seen.rows for seen in by_layer.values()}
        everywhere = len(by_layer) == len(self._seen) > 1 and len(parts) == 1
        for layer in sorted(by_layer)[: 1 if everywhere else None]:
            seen = by_layer[layer]
            position = None if sample is None else self._probe.positions[sample]
            # Padding of a width is the same at every layer; what one layer alone lacks is not.
            partly = seen.kind == "constant_dimensions" and layer > 0 and not everywhere
            yield Finding(
                kind=seen.kind,
                detail=f"at layer {layer} {seen.detail}" if everywhere else seen.detail,
                severity=Severity.ERROR if partly else seen.severity,
                sample_id=None if sample is None else self._id(sample),
                shard=None if position is None else self._probe.shard(position),
                layer=None if everywhere else layer,
                token_range=seen.rows,
                expected=seen.expected,
                advice=AGAIN if sample is None else REPAIR,
            )

    def _id(self, sample: int) -> str:
        return self._probe.sample_id(self._probe.positions[sample])

    def _constant(self, facts: RowFacts) -> Iterator[Seen]:
        usual = int(np.median(facts.constant))
        if usual:
            yield Seen(
                kind="constant_dimensions",
                sample=None,
                detail=f"{usual} of {facts.spread.shape[1]} dimensions hold one value in all rows "
                "of most samples.",
                expected="values that change from row to row; padding of the model's width is "
                "harmless",
                severity=Severity.WARNING,
            )
        for sample in np.flatnonzero(facts.constant > usual).tolist():
            if not self._varied[sample]:
                continue
            yield Seen(
                kind="unlike_rest",
                sample=sample,
                detail=f"{int(facts.constant[sample])} of {facts.spread.shape[1]} dimensions hold "
                f"one value in all of its rows; in the other samples {usual} do.",
                expected="values that change from row to row",
            )

    def _rounded(self, facts: RowFacts) -> Iterator[Seen]:
        share = facts.off_grid.astype(np.float64)
        if len(share) < FEWEST_SAMPLES or np.isnan(share).any():
            return
        usual = float(np.median(share))
        limit = max(OTHER_ROUNDING, reach(share - usual, self._log_alpha))
        for sample in np.flatnonzero(np.abs(share - usual) > limit).tolist():
            yield Seen(
                kind="unlike_rest",
                sample=sample,
                detail=f"{share[sample]:.0%} of its values have more digits than bfloat16 holds; "
                f"of the other samples' values {usual:.0%} do. Other arithmetic made them, or they "
                "were changed since.",
                expected="values rounded as in the other samples",
            )

    def _contradicting(self, facts: RowFacts) -> Iterator[Seen]:
        for group in self._groups:
            for found in same_context.contradictions(group, facts.kept):
                yield Seen(
                    kind="prefix_mismatch",
                    sample=found.sample,
                    detail=f"its first {group.tokens} tokens are those of {len(group.samples) - 1} "
                    f"other samples, but its states there differ from theirs by "
                    f"{found.difference:.1%} (theirs from each other by {found.usual:.1%}).",
                    expected="equal states for equal tokens, up to the engine's rounding",
                    rows=(0, group.tokens),
                )

    def _repeated(self, facts: RowFacts, right: Flags | None) -> Iterator[Seen]:
        share, tokens = duplicates.token_only_share(self._sequences, facts.digest)
        if tokens >= _FEWEST_TOKENS and share > EMBEDDINGS:
            yield Seen(
                kind="context_free",
                sample=None,
                detail=f"{share:.0%} of {tokens} tokens have one and the same state wherever they "
                "stand: those are embeddings, not states.",
                expected="states that depend on what came before",
            )
            return
        usable = np.isfinite(facts.log_rms)
        for found in duplicates.repeated_rows(
            self._sequences, self._contexts, facts.digest, usable
        ):
            if right is None or not _is_the_original(found, right):
                yield self._equal(found)

    def _equal(self, found: duplicates.Repeated) -> Seen:
        """What equal rows mean: shifted, another text's, or no more than that they are equal."""
        own = found.other == found.sample
        other = "each other" if own else f"rows of sample {self._id(found.other)}"
        said = f"{found.count} of its rows are equal to {other} to the bit, though what came "
        said += "before them is not"
        kind, detail = "duplicate_rows", f"{said}." if own else f"{said}; one of the two is wrong."
        if not own and found.outvoted and found.shift:
            kind = "shifted"
            detail = f"row t holds the state of token t{found.shift:+d}: {said}."
        elif not own and found.outvoted:
            kind = "swapped_samples"
            detail = f"its states are those of another text: {said}."
        return Seen(
            kind=kind,
            sample=found.sample,
            detail=detail,
            expected="another state for every context",
            rows=found.rows if kind == "duplicate_rows" else None,
            other=found.other,
        )

    def _dimensions(self, facts: RowFacts) -> Iterator[Seen]:
        for sample, dimension, factor in unlike_dimensions(facts, self._varied, self._log_alpha):
            yield Seen(
                kind="unlike_rest",
                sample=sample,
                detail=f"dimension {dimension} is {factor:.3g} times as large as in the other "
                "samples.",
                expected="magnitudes like the other samples'",
            )


def _is_the_original(found: duplicates.Repeated, right: Flags) -> bool:
    """Whether the rows name their own tokens, and those that are equal to them do not."""
    own, others = right[found.equal].sum(0).tolist()
    return bool(own >= _FEWEST_RIGHT and own > 3 * others)


_REGARDLESS = ("misread_bits", "clipped", "constant_dimensions", "context_free")
