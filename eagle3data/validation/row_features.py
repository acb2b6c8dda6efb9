"""Hidden states as comparable rows: what the token-identity probe works on.

Unit rms per row, standardised per dimension, projected, unit norm: massive activations, which a
few dimensions of a few rows have, count no more than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class RowFeatures:
    """A standardisation and a projection that were fitted once.

    Attributes:
        mean: `[H]` of rows at unit rms.
        deviation: `[H]`, above 0.
        projection: `[H, D]` of random normal numbers, the same every time; None where H <= D.
    """

    mean: Tensor
    deviation: Tensor
    projection: Tensor | None

    @classmethod
    def fitted(cls, states: Tensor) -> RowFeatures:
        """Fit to `[R, H]` states of any float dtype."""
        import torch

        rows = unit_rms(states)
        width = rows.shape[1]
        projection = None
        if width > WIDTH:
            generator = torch.Generator().manual_seed(0)
            projection = torch.randn(width, WIDTH, generator=generator)
        return cls(mean=rows.mean(0), deviation=rows.std(0).add_(1e-6), projection=projection)

    def __call__(self, states: Tensor) -> Tensor:
        """`[R, D]` float32 of `[R, H]` states; zero where a row is zero or not finite."""
        return self.of_unit_rows(unit_rms(states))

    def of_unit_rows(self, rows: Tensor) -> Tensor:
        """The same of rows that `unit_rms` made."""
        import torch

        good = rows.abs().amax(1, keepdim=True) > 0
        scaled = (rows - self.mean).div_(self.deviation)
        if self.projection is not None:
            scaled = scaled @ self.projection
        return torch.nn.functional.normalize(scaled, dim=1) * good


def unit_rms(states: Tensor) -> Tensor:
    """`[R, H]` float32 rows of root mean square 1; zero where a row is zero or not finite."""
    import torch

    rows = torch.nan_to_num(states.float(), nan=0.0, posinf=0.0, neginf=0.0)
    return rows * rows.square().mean(1, keepdim=True).add_(1e-12).rsqrt()
