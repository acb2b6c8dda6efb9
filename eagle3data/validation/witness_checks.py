"""The witness of every sample of the set, not of the probed ones only, and what explains a bad one.

Only each sample's last chunk is read, some hundred samples at a time, so memory does not grow with
the set.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.layers import NormState
from eagle3data.validation import witness
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.measured import Witnesses
from eagle3data.validation.probe_set import ProbeSet

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.storage.model_weights import TargetHead

SAMPLES_AT_ONCE = 512
SEARCHED = 24
"""Disagreeing samples for which another explanation is tried."""


class WitnessChecks:
    """Every sample's last row through the head.

    Attributes:
        note: a sentence for the report's confidence.
        measured: the numbers behind it; None where no sample has a witness.
    """

    def __init__(self, probe: ProbeSet, head: TargetHead, explained: set[str]) -> None:
        """Prepare.

        Args:
            probe: gives access to the set.
            head: the target's.
            explained: ids of samples that are known to be wrong already.
        """
        self._probe, self._head, self._explained = probe, head, explained
        manifest = probe.dataset.manifest
        self._final, self._layers = manifest.final_layer, manifest.layers
        self._post = manifest.capture.norm_state is NormState.POST
        self._findings: list[Finding] = []
        columns = (probe.dataset.index[name] for name in ("witness_token", "witness_logprob"))
        self._expected: dict[int, tuple[int, float]] = {
            position: (token, logprob)
            for position, (token, logprob) in enumerate(
                zip(*(column.to_pylist() for column in columns), strict=True)
            )
            if token is not None and logprob is not None
        }
        self.note = (
            "No sample has a witness (the engine's own next token), so which layer the final one "
            "is was judged by the next-token probe alone: one layer short would not show."
        )
        self.measured: Witnesses | None = None

    def run(self, *, foretells: bool, already_wrong: bool) -> list[Finding]:
        """Read all of them and explain those that disagree.

        Args:
            foretells: the next-token probe finds the final layer's states right.
            already_wrong: another check explains the set as a whole.
        """
        positions, reading = self._read_all()
        if reading is None:
            return self._findings
        bad, whole = witness.disagreeing(reading)
        size = reading.difference.abs().nan_to_num(posinf=1e9)
        self.measured = Witnesses(
            samples=len(positions),
            agreeing=len(positions) - int(bad.sum()),
            difference=np.quantile(size.numpy(), np.linspace(0, 1, 101)).tolist(),
        )
        self.note = (
            f"Witness: the last rows of {self.measured.agreeing:,} of {len(positions):,} samples "
            f"give the engine's own next token; median difference {float(size.median()):.3f} nats."
        )
        failing = [positions[at] for at in bad.nonzero().flatten().tolist()]
        if whole and failing:
            if not already_wrong:
                self._of_set(failing, foretells=foretells)
            return self._findings
        for position in failing:
            if self._probe.sample_id(position) not in self._explained:
                self._of_sample(position)
        return self._findings

    def _read_all(self) -> tuple[list[int], witness.Reading | None]:
        import torch

        positions: list[int] = []
        readings = []
        for batch in self._batches():
            rows = self._last_rows(batch)
            good = [at for at, row in rows.items() if bool(torch.isfinite(row).all() & row.any())]
            if good:
                positions += good
                stacked = torch.stack([rows[at] for at in good])
                readings.append(self._read(good, stacked, post_norm=self._post))
        if not readings:
            return positions, None
        return positions, witness.joined(readings)

    def _batches(self) -> Iterator[list[int]]:
        known = list(self._expected)
        for start in range(0, len(known), SAMPLES_AT_ONCE):
            yield known[start : start + SAMPLES_AT_ONCE]

    def _last_rows(self, positions: Sequence[int]) -> dict[int, Tensor]:
        """Rows by position; those that can't be read become findings."""

        def read(position: int) -> Tensor | CorruptionError:
            try:
                return self._probe.last_row(position, self._final)
            except CorruptionError as error:
                return error

        found = {}
        with ThreadPoolExecutor(max_workers=min(8, 2 * (os.cpu_count() or 1))) as pool:
            for position, row in zip(positions, pool.map(read, positions), strict=True):
                if isinstance(row, CorruptionError):
                    self._add(position, row.kind, str(row))
                else:
                    found[position] = row
        return found

    def _read(self, positions: Sequence[int], rows: Tensor, *, post_norm: bool) -> witness.Reading:
        import torch

        return witness.read(
            self._head,
            rows,
            torch.tensor([self._expected[position][0] for position in positions]),
            torch.tensor([self._expected[position][1] for position in positions]),
            post_norm=post_norm,
        )

    def _explanations(self, position: int) -> dict[tuple[str, str], Tensor]:
        """Other rows that could be the right one, by kind and sentence, as the head wants them."""
        states = self._probe.states(position, self._final)
        found = {
            ("wrong_norm_state", "with the norm " + ("put in" if self._post else "left out")): (
                self._head.normed(states[-1:])[0] if self._post else states[-1].float()
            )
        }
        for layer in self._layers:
            if layer != self._final:
                row = self._probe.last_row(position, layer)
                found["layers_swapped", f"from the place of layer {layer}"] = self._normed(row)
        if len(states) > 1:
            found["shifted", "from the row before the last"] = self._normed(states[-2], final=True)
            found["shifted", "from the first row"] = self._normed(states[0], final=True)
        return found

    def _normed(self, row: Tensor, *, final: bool = False) -> Tensor:
        return row.float() if final and self._post else self._head.normed(row[None])[0]

    def _explain(self, positions: Sequence[int]) -> list[tuple[str, str]]:
        """What would make the samples' rows right: of each sample, every row that does."""
        import torch

        tried = [
            (position, key, row)
            for position in positions
            for key, row in self._explanations(position).items()
        ]
        rows = torch.stack([row for _, _, row in tried])
        reading = self._read([position for position, _, _ in tried], rows, post_norm=True)
        agrees = reading.agrees().tolist()
        return [key for (_, key, _), right in zip(tried, agrees, strict=True) if right]

    def _of_set(self, failing: list[int], *, foretells: bool) -> None:
        some = failing[:: -(-len(failing) // SEARCHED)]
        counts = Counter(self._explain(some))
        best = max(counts, key=counts.__getitem__, default=None)
        if best is not None and counts[best] > len(some) * witness.MOSTLY:
            kind, how = best
            detail = f"they do when the state is read {how}."
        elif foretells:
            kind, detail = (
                "wrong_final_layer",
                "they foretell the next token, but not as the target.",
            )
        else:
            kind, detail = "wrong_model", "no other row, layer or norm explains it."
        self._findings.append(
            Finding(
                kind=kind,
                layer=self._final,
                detail=f"over the whole set, the last rows of layer {self._final} don't give the "
                f"engine's own next tokens ({len(failing):,} samples disagree); {detail}",
                expected=f"what leaves the last layer ({self._final}), "
                + ("after the norm" if self._post else "before the norm"),
                advice="Extract again with the layers of `--layers auto`.",
            )
        )

    def _of_sample(self, position: int) -> None:
        explained = self._explain([position])
        kind, how = explained[0] if len(explained) == 1 else ("witness_mismatch", "")
        token, logprob = self._expected[position]
        detail = (
            f"its last row does not give the engine's own next token ({token}, {logprob:.2f} nats)"
        )
        detail += f"; read {how} it does." if how else "; its last state is not this sample's."
        self._add(position, kind, detail)

    def _add(self, position: int, kind: str, detail: str) -> None:
        self._findings.append(
            Finding(
                kind=kind,
                detail=detail,
                sample_id=self._probe.sample_id(position),
                shard=self._probe.shard(position),
                layer=self._final,
                advice=REPAIR,
            )
        )
