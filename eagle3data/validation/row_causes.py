"""What a row is that isn't its own: another token's, another layer's, normed, scaled, nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3data.schema.layers import NormState
from eagle3data.schema.manifest import Manifest
from eagle3data.validation.row_errors import LIMIT, NEARER, RowErrors, distance

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.validation.recomputed import Recomputed

REACH = 1024
"""Places before and after a row at which its state is looked for."""
_BLOCK = 512


@dataclass(frozen=True)
class Cause:
    """Why rows are not their own.

    Attributes:
        kind: the fault's code.
        number: the shift in tokens, or the layer whose states they are.
        words: a clause that says it.
    """

    kind: str
    number: int = 0
    words: str = ""


STRANGE = Cause("states_differ")
"""No row that was looked at is like it."""


def find_causes(
    rows: RowErrors,
    layer: int,
    sample: Recomputed,
    norm: Callable[[Tensor], Tensor],
    manifest: Manifest,
) -> list[Cause | None]:
    """What each row is: None for a right one.

    Args:
        rows: the layer's.
        layer: canonical id.
        sample: every layer of it, recomputed.
        norm: the target's final norm.
        manifest: of the set.
    """
    import torch

    found: list[Cause | None] = [STRANGE if bad else None for bad in (rows.units > LIMIT).tolist()]
    best = rows.error * NEARER
    limits = LIMIT * rows.unit

    def offer(cause: Cause, errors: Tensor, chosen: Tensor) -> None:
        for at in (chosen & (errors < best) & (errors <= limits)).nonzero().flatten().tolist():
            found[at], best[at] = cause, errors[at]

    everywhere = torch.ones(len(best), dtype=torch.bool)
    for other, states in sample.states.items():
        if other != layer:
            cause = _other_layer(other, layer, manifest)
            offer(cause, distance(rows.stored, states.float()), everywhere)
    if layer == manifest.final_layer:
        for words, states in _norm_readings(sample.states[layer], norm, manifest):
            cause = Cause("wrong_norm_state", words=words)
            offer(cause, distance(rows.stored, states.float()), everywhere)
    scaled = rows.stored / rows.scale[:, None]
    offer(Cause("scaled"), distance(scaled, rows.right), (rows.units > LIMIT) & (rows.scale != 0))
    strange = torch.tensor([cause == STRANGE for cause in found])
    for at, place, error in _other_tokens(rows, strange):
        if error < min(float(best[at]), float(limits.max())):
            found[at] = Cause("shifted", place - at)
    _broken(rows.stored, found)
    return found


def _other_layer(other: int, layer: int, manifest: Manifest) -> Cause:
    if other in manifest.layers:
        kind = "layers_swapped"
    else:
        kind = "wrong_final_layer" if layer == manifest.final_layer else "wrong_layer"
    return Cause(kind, other, f"they are the states of layer {other}")


def _norm_readings(
    states: Tensor, norm: Callable[[Tensor], Tensor], manifest: Manifest
) -> list[tuple[str, Tensor]]:
    normed = norm(states)
    once = (
        ("they are before the final norm", states)
        if manifest.capture.norm_state is NormState.POST
        else ("they carry the final norm", normed)
    )
    return [once, ("the final norm was applied twice", norm(normed))]


def _other_tokens(rows: RowErrors, strange: Tensor) -> list[tuple[int, int, float]]:
    """`(row, place, error)`: where in the sample the nearest recomputed row to a strange one is."""
    import torch

    found: list[tuple[int, int, float]] = []
    length = len(rows.right)
    at = strange.nonzero().flatten().tolist()
    for start in range(0, len(at), _BLOCK):
        block = torch.tensor(at[start : start + _BLOCK])
        low, high = max(0, int(block[0]) - REACH), min(length, int(block[-1]) + REACH + 1)
        near = rows.right[low:high]
        stored = torch.nan_to_num(rows.stored[block], nan=0.0, posinf=0.0, neginf=0.0)
        size = near.square().sum(1)
        # Relative to the recomputed row, as every error here: |s - r|^2 / |r|^2.
        squares = stored.square().sum(1, keepdim=True) - 2 * stored @ near.T + size
        places = (squares / size.clamp(min=1e-30)).argmin(1) + low
        errors = distance(rows.stored[block], rows.right[places])
        found += zip(block.tolist(), places.tolist(), errors.tolist(), strict=True)
    return found


def _broken(stored: Tensor, found: list[Cause | None]) -> None:
    import torch

    finite = torch.isfinite(stored).all(1)
    zero = (stored == 0).all(1)
    for at in (~finite).nonzero().flatten().tolist():
        found[at] = Cause("saturated" if not torch.isnan(stored[at]).any() else "nonfinite")
    for at in zero.nonzero().flatten().tolist():
        if found[at] is not None:
            found[at] = Cause("all_zero")
