"""Muon's orthogonalisation in float32, for CPUs that only emulate bfloat16.

torch does it in bfloat16, which takes half a minute a step there and two tenths of a second in
float32. Both trainers of `benchmarks.trainers` use torch's, so both get this.
"""

from __future__ import annotations

from typing import Any

import torch


def orthogonalise(
    gradient: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Towards the nearest orthogonal matrix, by steps of an odd polynomial of degree five."""
    linear, cubic, quintic = coefficients
    tall = gradient.shape[0] > gradient.shape[1]
    found: torch.Tensor = (gradient.T if tall else gradient).float()
    found = found / found.norm().clamp(min=eps)
    for _ in range(steps):
        square = found @ found.T
        found = linear * found + (cubic * square + quintic * square @ square) @ found
    return found.T if tall else found


def use_float32() -> None:
    """Have torch's Muon do so in this process."""
    muon: Any = torch.optim._muon
    muon._zeropower_via_newtonschulz = orthogonalise
