"""Which layer do a sample's states look like: layers swapped or repeated in a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MIN_SAMPLES = 8
_QUANTILE = 0.95


def misplaced(profiles: dict[int, Tensor]) -> list[tuple[int, int, int]]:
    """Find samples whose states in one layer's place look like another layer's.

    A layer's states share a mean direction that the other captured layers' don't. A sample is
    misplaced where it is beyond its layer's usual distance from that direction, within the other
    layer's usual distance from the other's, and much nearer to the latter.

    Args:
        profiles: by layer, `[n, H]` float32: each sample's mean row at unit rms.

    Returns:
        `(sample, layer, looks like layer)`; empty for sets of fewer than `MIN_SAMPLES`.
    """
    import torch

    layers = list(profiles)
    if len(layers) < 2 or len(profiles[layers[0]]) < MIN_SAMPLES:
        return []
    directions = {
        layer: torch.nn.functional.normalize(profiles[layer].median(0).values, dim=0)
        for layer in layers
    }
    distance = {
        (layer, like): 1 - torch.nn.functional.normalize(profiles[layer], dim=1) @ directions[like]
        for layer in layers
        for like in layers
    }
    usual = {layer: float(distance[layer, layer].quantile(_QUANTILE)) for layer in layers}
    found = []
    for layer in layers:
        own = distance[layer, layer]
        for like in layers:
            there = distance[layer, like]
            wrong = (own > usual[layer]) & (there <= usual[like]) & (there < own / 2)
            found += [
                (int(sample), layer, like) for sample in wrong.nonzero().flatten() if like != layer
            ]
    return sorted(found)
