"""What recomputing says when it is done: how much was compared, how near, what would have shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle3data.validation.recompute_verdicts import RecomputeVerdicts
from eagle3data.validation.recomputed import RecomputingTarget
from eagle3data.validation.row_errors import LIMIT
from eagle3data.validation.significance import caught_share

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.validation.compared_layer import ComparedLayer

QUANTILES = (0.5, 0.9, 0.99)


def recompute_notes(
    verdicts: RecomputeVerdicts, target: RecomputingTarget, total: int
) -> list[str]:
    """Sentences for the report's confidence.

    Args:
        verdicts: on the recomputed samples.
        target: what recomputed them.
        total: samples of the set.
    """
    samples = len(verdicts.samples)
    tokens = sum(len(sample) for sample in verdicts.samples)
    longest = max(len(sample) for sample in verdicts.samples)
    notes = [
        f"Recomputed {samples:,} of {total:,} samples ({tokens:,} tokens, the longest {longest:,}) "
        f"with {target.name} in {target.compute_dtype}, all {len(verdicts.layers)} captured layers."
    ]
    notes += [_layer_note(layer, verdicts.of(layer)) for layer in verdicts.layers]
    lone = sum(_beyond(one) for one in verdicts.compared) if not verdicts.findings else 0
    if lone:
        notes.append(
            f"Recomputing: {lone} single rows are further off than that; alone they prove nothing."
        )
    if samples < total:
        notes.append(
            f"Recomputing: if {caught_share(samples, total):.1%} or more of the samples were "
            "wrong, one would have been met with 95 % probability."
        )
    return notes


def _layer_note(layer: int, compared: Sequence[ComparedLayer]) -> str:
    import torch

    error = torch.cat([one.error for one in compared])
    unit = torch.cat([one.unit for one in compared])
    said = ", ".join(f"{q:.0%} {_percent(error, q)}" for q in QUANTILES)
    stranger = float(torch.tensor([one.stranger for one in compared]).median())
    return (
        f"Recomputed, layer {layer}: a row's error {said}, largest {_percent(error, 1.0)}; "
        f"rounding makes {_percent(unit, 0.5)}, another token's row is {stranger:.0%} off. A run "
        f"of rows off by {_percent(LIMIT * unit, 0.5)} would have shown, and any single row that "
        "is another token's, another layer's or normed."
    )


def _percent(values: Tensor, quantile: float) -> str:
    return f"{float(values.quantile(quantile, interpolation='nearest')):.2%}"


def _beyond(one: ComparedLayer) -> int:
    return int((one.units > LIMIT).sum())
