"""Stored rows of one layer of one sample against the recomputed ones: how far off, in what units.

A row's error is `|stored - recomputed| / |recomputed|`. What a right row may be off by is not a
constant: it grows from layer to layer, with the dtype, and on rows whose large numbers cancel. The
recomputed twin shows it row by row (`Recomputed.twins`), so an error is counted in units of the
twin's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from eagle3data.schema.manifest import StorageDtype

if TYPE_CHECKING:
    from torch import Tensor

LIMIT = 6.0
"""A row that is off by more units than this is not what rounding makes. (Between two engines in
bfloat16 the largest of some thousand rows is 2.)"""
NEARER = 0.5
"""Another row explains a stored one only if it is nearer than this share of its own's distance."""
_STEP = {StorageDtype.FLOAT16: 2.0**-11, StorageDtype.BFLOAT16: 2.0**-9}
_ROWS_OF_DIMENSIONS = 16
_TINY = 1e-30


def distance(rows: Tensor, others: Tensor) -> Tensor:
    """`[T]` relative error of `[T, H]` rows against `[T, H]` others, infinite if not finite."""
    import torch

    size = torch.linalg.vector_norm(others, dim=1).clamp_(min=_TINY)
    error = torch.linalg.vector_norm(rows - others, dim=1) / size
    return torch.nan_to_num(error, nan=float("inf"))


@dataclass(frozen=True, kw_only=True, eq=False)
class RowErrors:
    """One layer of one sample.

    Attributes:
        stored: `[T, H]` float32, as the set has them.
        right: `[T, H]` float32, as the target computes them.
        twin: `[T, H]` float32, the twin run's.
        dtype: what the set stores.
    """

    stored: Tensor
    right: Tensor
    twin: Tensor
    dtype: StorageDtype

    @cached_property
    def error(self) -> Tensor:
        """`[T]` relative error of each row."""
        return distance(self.stored, self.right)

    @cached_property
    def unit(self) -> Tensor:
        """`[T]` relative error that rounding may make of each row.

        The twin's error; where the twin was lucky, what it usually is in this sample; never less
        than what storing rounds by.
        """
        noise = distance(self.twin, self.right)
        return noise.clamp_(min=max(float(noise.median()), _STEP[self.dtype]))

    @cached_property
    def units(self) -> Tensor:
        """`[T]` each row's error in units of rounding."""
        return self.error / self.unit

    @cached_property
    def stranger(self) -> float:
        """Median error of a row against another token's: the null."""
        if len(self.right) == 1:
            return 1.0
        half = len(self.right) // 2
        return float(distance(self.right.roll(half, 0), self.right).median())

    @cached_property
    def scale(self) -> Tensor:
        """`[T]` the factor by which each stored row fits best."""
        import torch

        fits = (self.stored * self.right).sum(1) / self.right.square().sum(1).clamp_(min=_TINY)
        return torch.nan_to_num(fits, nan=0.0)

    def unlike_dimensions(self, rows: Tensor) -> list[int]:
        """Dimensions that differ in most of these rows by more than rounding; none for few rows.

        Args:
            rows: `[T]` bool.
        """
        if int(rows.sum()) < _ROWS_OF_DIMENSIONS:
            return []
        right = self.right[rows]
        off = (self.stored[rows] - right).abs_().median(0).values
        noise = (self.twin[rows] - right).abs_().median(0).values
        step = right.abs().median(0).values * _STEP[self.dtype]
        found: list[int] = (off > LIMIT * noise.maximum(step)).nonzero().flatten().tolist()
        return found
