"""Checks through the target's own head: next token, norm state, order of layers, the witness."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import Manifest, NormState
from eagle3data.validation import next_token, witness
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.layer_views import LayerView, index_texts
from eagle3data.validation.owners import find_owner
from eagle3data.validation.probe_set import ProbeSet
from eagle3data.validation.token_identity import Sequences, stands_above

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.storage.model_weights import TargetHead
    from eagle3data.validation.next_token import NextToken

SEARCHED = 64
"""Disagreeing samples for which another explanation is tried."""
SEARCHED_ROWS = 128
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
    """

    findings: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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
        readings = self._next_tokens()
        swapped = self._layer_order(readings)
        if final not in self.views:
            self.result.undecided.append(
                f"The final layer {final} was not captured, so nothing proves the teacher's logits."
            )
            return self.result
        wrong = swapped
        if readings:
            wrong = self._next_token_of_set(readings[final]) or wrong
            wrong = self._norm_state(readings[final]) or wrong
        self._witness(readings.get(final), already_wrong=wrong)
        return self.result

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

    def _witness(self, reading: NextToken | None, *, already_wrong: bool) -> None:
        import torch

        index = self.probe.dataset.index
        tokens = index["witness_token"].to_pylist()
        logprobs = index["witness_logprob"].to_pylist()
        positions, rows = [], []
        for position, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            if token is None or logprob is None:
                continue
            row = self._last_row(position, self.manifest.final_layer)
            if row is not None and bool(torch.isfinite(row).all()) and bool((row != 0).any()):
                positions.append(position)
                rows.append(row)
        if not positions:
            self.result.notes.append(
                "No sample has a witness (the engine's own next token), so which layer the final "
                "one is was judged by the next-token probe alone: one layer short would not show."
            )
            return
        self._expected = {
            position: (int(tokens[position] or 0), float(logprobs[position] or 0.0))
            for position in positions
        }
        found = self._read(positions, torch.stack(rows), post_norm=self.post)
        bad, whole = witness.disagreeing(found)
        self.result.notes.append(
            f"Witness: the last rows of {len(positions) - int(bad.sum()):,} of {len(positions):,} "
            f"samples give the engine's own next token; median difference "
            f"{float(found.difference.abs().median()):.3f} nats."
        )
        failing = [positions[at] for at in bad.nonzero().flatten().tolist()]
        if whole and failing:
            if not already_wrong:
                self._witness_of_set(failing, reading)
            return
        for position in failing:
            if self.probe.sample_id(position) not in self.explained:
                self._witness_of_sample(position)

    def _last_row(self, position: int, layer: int) -> Tensor | None:
        try:
            return self.probe.last_row(position, layer)
        except CorruptionError as error:
            self._add(position, error.kind, str(error), layer=layer)
            return None

    def _read(self, positions: Sequence[int], rows: Tensor, *, post_norm: bool) -> witness.Reading:
        import torch

        expected = [self._expected[position] for position in positions]
        return witness.read(
            self.head,
            rows,
            torch.tensor([token for token, _ in expected]),
            torch.tensor([logprob for _, logprob in expected]),
            post_norm=post_norm,
        )

    def _explanations(self, position: int) -> dict[tuple[str, str], Tensor]:
        """Other rows that could be the right one, by kind and sentence, as the head wants them."""
        final = self.manifest.final_layer
        states = self.probe.states(position, final)
        found = {
            ("wrong_norm_state", "with the norm " + ("put in" if self.post else "left out")): (
                self.head.normed(states[-1:])[0] if self.post else states[-1].float()
            )
        }
        for layer in self.views:
            if layer != final:
                row = self.probe.last_row(position, layer)
                found["layers_swapped", f"from the place of layer {layer}"] = self._normed(row)
        if len(states) > 1:
            found["shifted", "from the row before the last"] = self._normed(states[-2], final=True)
            found["shifted", "from the first row"] = self._normed(states[0], final=True)
        return found

    def _normed(self, row: Tensor, *, final: bool = False) -> Tensor:
        return row.float() if final and self.post else self.head.normed(row[None])[0]

    def _explain(self, position: int) -> list[tuple[str, str]]:
        import torch

        tried = self._explanations(position)
        reading = self._read(
            [position] * len(tried), torch.stack([*tried.values()]), post_norm=True
        )
        agrees = reading.agrees().tolist()
        return [key for key, right in zip(tried, agrees, strict=True) if right]

    def _witness_of_set(self, failing: list[int], reading: NextToken | None) -> None:
        final = self.manifest.final_layer
        counts: dict[tuple[str, str], int] = {}
        some = failing[:: max(1, len(failing) // SEARCHED)]
        for position in some:
            for key in self._explain(position):
                counts[key] = counts.get(key, 0) + 1
        best = max(counts, key=counts.__getitem__, default=None)
        if best is not None and counts[best] > len(some) * witness.MOSTLY:
            kind, how = best
            detail = f"they do when the state is read {how}."
        elif reading is not None and reading.shift == 1:
            kind, detail = (
                "wrong_final_layer",
                "they foretell the next token, but not as the target.",
            )
        else:
            kind, detail = "wrong_model", "no other row, layer or norm explains it."
        self.result.findings.append(
            Finding(
                kind=kind,
                layer=final,
                detail=f"over the whole set, the last rows of layer {final} don't give the "
                f"engine's own next tokens ({len(failing):,} samples disagree); {detail}",
                expected=f"what leaves the last layer ({final}), "
                + ("after the norm" if self.post else "before the norm"),
                advice="Extract again with the layers of `--layers auto`.",
            )
        )

    def _witness_of_sample(self, position: int) -> None:
        explained = self._explain(position)
        kind, how = explained[0] if len(explained) == 1 else ("witness_mismatch", "")
        token, logprob = self._expected[position]
        detail = (
            f"its last row does not give the engine's own next token ({token}, {logprob:.2f} nats)"
        )
        detail += f"; read {how} it does." if how else "; its last state is not this sample's."
        self._add(position, kind, detail, layer=self.manifest.final_layer)

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
