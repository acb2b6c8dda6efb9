"""Before the first step: are the states those of their tokens?

States that are one row off train without an error, some with a superb curve, and make a draft that
no server accepts (docs/train.md shows it). A few seconds of probing tell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eagle3data.schema.errors import Eagle3DataError
from eagle3data.validation.shifts import NEXT_TOKEN, LayerShift, layer_shifts

if TYPE_CHECKING:
    from eagle3data.trainer.inputs import Inputs

ALIGNED, MISALIGNED, UNDETERMINED = "aligned", "misaligned", "undetermined"


class MisalignedError(Eagle3DataError):
    """States that belong to other tokens than the ones they stand beside."""


def require_aligned(inputs: Inputs) -> dict[str, Any]:
    """Probe the training split; what was found, as a record for `metrics.jsonl`.

    Raises:
        MisalignedError: rows are shifted, and `data.allow_misaligned` is not set; names the layers.
    """
    began = time.monotonic()
    dataset, section = inputs.dataset, inputs.config.data
    wanted = section.train_split
    positions = [
        at
        for at, split in enumerate(dataset.index["split"].to_pylist())
        if wanted is None or split == wanted
    ]
    readings = layer_shifts(dataset, positions, inputs.loader.layers, inputs.head)
    off = [reading for reading in readings if reading.shift]
    if off and not section.allow_misaligned:
        raise MisalignedError(
            f"{dataset.url}: {_said(off, len(readings))} A draft trained on them may look good and "
            "is never accepted. Expected: the best agreement at shift 0. Look closer with "
            f"`eagle3data validate {dataset.url} --level semantic --model MODEL`, and extract "
            "again; or train on it all the same with data.allow_misaligned=true."
        )
    told = any(reading.shift == 0 for reading in readings)
    verdict = MISALIGNED if off else ALIGNED if told else UNDETERMINED
    return {
        "kind": "alignment",
        "step": 0,
        "verdict": verdict,
        "notice": _notice(verdict, off, readings),
        "layers": {str(reading.layer): _as_dict(reading) for reading in readings},
        "seconds": time.monotonic() - began,
    }


def _said(off: Sequence[LayerShift], layers: int) -> str:
    """Every layer that is off, in a sentence each; one will do where all are off alike."""
    if len(off) == 1 and off[0].named == 0:
        only = off[0]
        return (
            f"layer {only.layer} is not what leaves the last decoder layer: its rows name their "
            f"own tokens, but only {only.shares[0]:.0%} of {only.rows:,} foretell, through the "
            "target's norm and lm_head, the one that follows."
        )
    alike = len(off) == layers and len({reading.shift for reading in off}) == 1
    sentences = []
    for reading in off[:1] if alike else off:
        where = "every layer" if alike else f"layer {reading.layer}"
        shift, shares = reading.shift or 0, reading.shares
        does = "foretell what follows it" if reading.probe == NEXT_TOKEN else "name that token"
        own = "what follows their own" if reading.probe == NEXT_TOKEN else "their own"
        sentences.append(
            f"at {where} row t holds the state of token t{shift:+d}: {shares[shift]:.0%} of "
            f"{reading.rows:,} rows of layer {reading.layer} {does}, {shares[0]:.0%} {own}."
        )
    return " ".join(sentences)


def _notice(verdict: str, off: Sequence[LayerShift], readings: Sequence[LayerShift]) -> str | None:
    if verdict == MISALIGNED:
        return f"training on misaligned states, as asked: {_said(off, len(readings))}"
    if verdict == UNDETERMINED:
        return (
            "whether the states are those of their tokens can't be told from this set: too few "
            "tokens repeat, or the target's weights are random."
        )
    if readings[-1].shift is None:
        return (
            f"nothing proves that layer {readings[-1].layer} is the final one: through the "
            "target's norm and lm_head it foretells no token clearly better than others."
        )
    return None


def _as_dict(reading: LayerShift) -> dict[str, Any]:
    return {
        "shift": reading.shift,
        "probe": reading.probe,
        "rows": reading.rows,
        "agreement": {f"{shift:+d}": share for shift, share in sorted(reading.shares.items())},
    }
