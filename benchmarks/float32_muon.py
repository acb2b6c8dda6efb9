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
    """Towards the nearest orthogonal matrix, by steps of an odd polynomial of degree five.

    A step is a product with a polynomial of `square`, with which it commutes: the short side's
    products are enough, and the matrix itself is multiplied once.
    """
    linear, cubic, quintic = coefficients
    tall = gradient.shape[0] > gradient.shape[1]
    matrix = (gradient.T if tall else gradient).float()
    matrix = matrix / matrix.norm().clamp(min=eps)
    square = matrix @ matrix.T
    total = one = torch.eye(len(matrix))
    for _ in range(steps):
        step = linear * one + cubic * square + quintic * square @ square
        total = step @ total
        square = step @ square @ step
    found: torch.Tensor = total @ matrix
    return found.T if tall else found


def use_float32() -> None:
    """Have torch's Muon do so in this process."""
    muon: Any = torch.optim._muon
    muon._zeropower_via_newtonschulz = orthogonalise
