"""Checks through the target's own head: next token, norm state, order of layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle3data.schema.layers import NormState
from eagle3data.schema.manifest import Manifest
from eagle3data.validation import next_token
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.layer_views import LayerView, index_texts
from eagle3data.validation.measured import Witnesses
from eagle3data.validation.owners import find_owner
from eagle3data.validation.probe_set import ProbeSet
from eagle3data.validation.token_identity import Sequences, stands_above
from eagle3data.validation.witness_checks import WitnessChecks

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.storage.model_weights import TargetHead
    from eagle3data.validation.next_token import NextToken

SEARCHED = 24
"""Samples for whose states another owner is looked for."""
SEARCHED_ROWS = 64
SECOND_OPINION = math.log(1e-3)
"""Log threshold of a test that only has to support one that is significant by itself."""
MIN_ROWS_OF_SAMPLE = 8
CLEAR_NATS = 1.0


@dataclass(kw_only=True)
class HeadResult:
    """What the checks through the head found.

    Attributes:
        findings: what is wrong.
        undecided: questions that stayed open.
        notes: sentences for the report's confidence.
        readings: the next-token probe by layer; empty where there are too few rows.
        witness: what every sample's last row says; None where there is no witness.
    """

    findings: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    readings: dict[int, NextToken] = field(default_factory=dict)
    witness: Witnesses | None = None


class HeadChecks:
    """One run of them over a probe set."""

    def __init__(
        self,
        probe: ProbeSet,
        sequences: Sequences,
        views: Sequence[LayerView],
        picked: Tensor,
        head: TargetHead,
        log_alpha: float,
        explained: set[str],
    ) -> None:
        """Prepare.

        Args:
            probe: the samples.
            sequences: their tokens.
            views: every captured layer, ascending.
            picked: `[P]` the rows of `LayerView.picked`.
            head: the target's.
            log_alpha: threshold of each single test.
            explained: ids of samples that earlier checks found wrong already.
        """
        self.probe = probe
        self.manifest: Manifest = probe.dataset.manifest
        self.sequences = sequences
        self.views = {view.layer: view for view in views}
        self.picked = picked
        self.head = head
        self.log_alpha = log_alpha
        self.explained = explained
        self.post = self.manifest.capture.norm_state is NormState.POST
        self.result = HeadResult()

    def run(self) -> HeadResult:
        """All checks; those of the final layer only where it was captured."""
        final = self.manifest.final_layer
        readings = self.result.readings = self._next_tokens()
        swapped = self._layer_order(readings)
        if final not in self.views:
            self.result.undecided.append(
                f"The final layer {final} was not captured, so nothing proves the teacher's logits."
            )
            return self.result
        wrong = swapped
        if readings:
            unnormed = self._norm_state(readings[final])
            wrong = unnormed or self._next_token_of_set(readings[final]) or wrong
        self._witness(readings.get(final), already_wrong=wrong)
        return self.result

    def _witness(self, reading: NextToken | None, *, already_wrong: bool) -> None:
        checks = WitnessChecks(self.probe, self.head, self.explained)
        foretells = reading is not None and reading.shift == 1
        self.result.findings += checks.run(foretells=foretells, already_wrong=already_wrong)
        self.result.notes.append(checks.note)
        self.result.witness = checks.measured

    def _next_tokens(self) -> dict[int, NextToken]:
        if len(self.picked) < MIN_ROWS_OF_SAMPLE:
            self.result.undecided.append(
                "Next token: the samples are too short, or all begin alike, to say anything."
            )
            return {}
        return {
            layer: self._read_next(
                layer,
                post_norm=self.post and layer == self.manifest.final_layer,
                likelihood=layer == self.manifest.final_layer,
            )
            for layer in self.views
        }

    def _read_next(self, layer: int, *, post_norm: bool, likelihood: bool) -> NextToken:
        targets = {shift: self.sequences.shifted(shift)[self.picked] for shift in next_token.SHIFTS}
        return next_token.measure(
            self.head,
            self.views[layer].picked,
            targets,
            self.log_alpha,
            post_norm=post_norm,
            likelihood=likelihood,
        )

    def _next_token_of_set(self, reading: NextToken) -> bool:
        final = self.manifest.final_layer
        said = ", ".join(f"{shift:+d}: {share:.0%}" for shift, share in reading.by_shift.items())
        if reading.shift == 1:
            self.result.notes.append(
                f"Next token at layer {final}, over {len(self.picked):,} rows: agreement by shift "
                f"{said}."
            )
            return False
        if reading.shift is not None:
            self.result.findings.append(
                Finding(
                    kind="shifted",
                    layer=final,
                    detail=f"over the whole set, layer {final} foretells the token at "
                    f"{reading.shift:+d} instead of the next one (agreement by shift {said}).",
                    expected="the best agreement at +1",
                    advice="Extract again, or import with the right shift.",
                )
            )
            return True
        if not next_token.is_trained(self.head):
            self.result.undecided.append(
                "Next token: the target's lm_head looks like random numbers, so no state of it "
                "foretells anything. Whether its final layer is right can't be decided."
            )
            return False
        if self._strangers():
            return True
        self.result.undecided.append(
            f"Next token: no shift stands out at layer {final} (agreement by shift {said})."
        )
        return False

    def _strangers(self) -> bool:
        """Samples whose final layer foretells another sample's text, when none fits its own."""
        texts = index_texts(self.probe)
        found = 0
        for sample in range(0, len(self.sequences), max(1, len(self.sequences) // SEARCHED)):
            position, span = self.probe.positions[sample], self.sequences.rows(sample)
            at = (~self.sequences.shared[span]).nonzero().flatten()[:SEARCHED_ROWS]
            if not len(at):
                continue
            states = self.probe.states(position, self.manifest.final_layer)[at]
            predicted = self.head.logits(states, post_norm=self.post).argmax(1).numpy()
            owner = find_owner(predicted, at.numpy() + 1, texts, position, self.log_alpha)
            if owner is not None:
                found += 1
                self._add(
                    position,
                    "swapped_samples",
                    f"its final layer foretells the text of sample {self.probe.sample_id(owner)}.",
                )
        return found > 0

    def _norm_state(self, reading: NextToken) -> bool:
        """Whether the final layer reads better with the norm left out (or put in)."""
        final = self.manifest.final_layer
        other = self._read_next(final, post_norm=not self.post, likelihood=True)
        here, there = reading.logprob, other.logprob
        if here is None or there is None:
            return False
        declared, actual = ("post", "pre") if self.post else ("pre", "post")
        detail = (
            "the final layer is declared {}-norm but reads as {}-norm: the next token gets {:.2f} "
            "nats as declared, {:.2f} the other way."
        )
        if next_token.reads_better(other, reading, self.log_alpha):
            self.result.findings.append(
                Finding(
                    kind="wrong_norm_state",
                    layer=final,
                    detail="over the whole set, "
                    + detail.format(declared, actual, float(here.mean()), float(there.mean())),
                    expected=f"norm_state {actual} in the manifest, or {declared}-norm states",
                    advice="Correct the manifest of an import, or extract again.",
                )
            )
            return True
        gain = there - here
        for sample in range(len(self.sequences)):
            mine = self.sequences.sample_of[self.picked] == sample
            enough = int(mine.sum()) >= MIN_ROWS_OF_SAMPLE
            enough &= int(other.right[mine].sum()) > int(reading.right[mine].sum())
            if enough and bool((gain[mine] > 0).all()) and float(gain[mine].mean()) > CLEAR_NATS:
                said = detail.format(
                    declared,
                    actual,
                    float(here[mine].mean()),
                    float(there[mine].mean()),
                )
                self._add(self.probe.positions[sample], "wrong_norm_state", said, layer=final)
        return False

    def _layer_order(self, readings: dict[int, NextToken]) -> bool:
        """Deeper layers name their own token less and foretell the next one more."""
        layers = sorted(readings)
        found = False
        for low, high in itertools.pairwise(layers):
            below, above = self.views[low].agreement, self.views[high].agreement
            common = below.testable & above.testable
            if None in (below.shift, above.shift):
                continue
            own_reversed = stands_above(above.right, below.right, common, self.log_alpha)
            rows = readings[low].right.new_ones(len(self.picked))
            next_reversed = stands_above(
                readings[low].right, readings[high].right, rows, SECOND_OPINION
            )
            if own_reversed and next_reversed:
                found = True
                self.result.findings.append(
                    Finding(
                        kind="layers_swapped",
                        layer=low,
                        detail=f"over the whole set, layer {low} is the deeper one of {low} and "
                        f"{high}: it names its own token less often "
                        f"({below.by_shift[0]:.0%} against {above.by_shift[0]:.0%}) and foretells "
                        f"the next one more often ({readings[low].by_shift[1]:.0%} against "
                        f"{readings[high].by_shift[1]:.0%}).",
                        expected="states in ascending order of layers",
                        advice="Extract again, or import with the layers in their stored order.",
                    )
                )
        return found

    def _add(self, position: int, kind: str, detail: str, layer: int | None = None) -> None:
        self.result.findings.append(
            Finding(
                kind=kind,
                detail=detail,
                sample_id=self.probe.sample_id(position),
                shard=self.probe.shard(position),
                layer=layer,
                advice=REPAIR,
            )
        )
