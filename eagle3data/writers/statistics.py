"""Per-layer statistics of a sample's states, kept in the index so that nobody needs the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import SampleError
from eagle3data.schema.sample import Sample, as_float32

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class LayerStatistics:
    """One layer of one sample.

    Attributes:
        absmax: largest finite magnitude.
        rms: root mean square over all finite values.
        min_row_rms: smallest root mean square of a row.
        n_zero_rows: rows that are all zero.
        n_nan: values that are NaN.
        n_inf: values that are plus or minus infinity.
    """

    absmax: float
    rms: float
    min_row_rms: float
    n_zero_rows: int
    n_nan: int
    n_inf: int


def layer_statistics(states: npt.NDArray[Any]) -> LayerStatistics:
    """Statistics of `[T, H]` states (float16, or bfloat16 as uint16 bits), in float32."""
    absmax, squares, least, zero_rows, n_nan, n_inf = 0.0, 0.0, np.inf, 0, 0, 0
    for start in range(0, len(states), _ROWS_AT_ONCE):
        rows = as_float32(states[start : start + _ROWS_AT_ONCE])
        finite = np.isfinite(rows)
        if not finite.all():
            n_nan += int(np.isnan(rows).sum())
            n_inf += int(np.isinf(rows).sum())
            rows = np.where(finite, rows, 0)
        absmax = max(absmax, float(np.abs(rows).max()))
        row_squares = np.einsum("th,th->t", rows, rows, dtype=np.float64)
        squares += float(row_squares.sum())
        least = min(least, float(row_squares.min()))
        zero_rows += int((row_squares == 0).sum())
    width = states.shape[1]
    return LayerStatistics(
        absmax=absmax,
        rms=float(np.sqrt(squares / states.size)),
        min_row_rms=float(np.sqrt(least / width)),
        n_zero_rows=zero_rows,
        n_nan=n_nan,
        n_inf=n_inf,
    )


def check_statistics(sample: Sample, found: dict[int, LayerStatistics]) -> None:
    """Refuse states that can't be right: NaN, infinite, or all zero.

    Raises:
        SampleError: `nonfinite`, `saturated` or `all_zero`, naming the layer.
    """
    for layer, statistics in found.items():
        if statistics.n_nan:
            raise SampleError(
                "nonfinite", sample.sample_id, f"{statistics.n_nan} NaN states at layer {layer}."
            )
        if statistics.n_inf:
            raise SampleError(
                "saturated",
                sample.sample_id,
                f"{statistics.n_inf} infinite states at layer {layer}: values past float16's "
                "65,504. Store bfloat16 (--dtype bfloat16).",
            )
        if statistics.n_zero_rows == len(sample):
            raise SampleError(
                "all_zero", sample.sample_id, f"all {len(sample)} rows of layer {layer} are zero."
            )
