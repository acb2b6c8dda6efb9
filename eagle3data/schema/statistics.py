"""Per-layer statistics of a sample's states, kept in the index so that nobody needs the bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import SampleError
from eagle3data.schema.sample import Sample, as_float32

_VALUES_AT_ONCE = 96 * 7168
"""Float32 of so many values, and their bits, stay in a cache; with fewer, threads that do this
beside each other wait for one another between numpy's calls."""
_WITHOUT_SIGN = np.uint16(0x7FFF)
_RELATIVE_ERROR = 1e-3
"""Statistics are sums in another order at most: they agree far closer than this."""


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

    def difference(self, stated: LayerStatistics) -> str | None:
        """A sentence on a magnitude that is not what the index states; None where all agree."""
        for name in ("absmax", "rms", "min_row_rms"):
            here, there = getattr(self, name), getattr(stated, name)
            if not math.isclose(here, there, rel_tol=_RELATIVE_ERROR, abs_tol=1e-6):
                return f"its {name} is {here:.6g}, the index says {there:.6g}: written again since."
        return None


def stored_faults(
    found: LayerStatistics, stated: LayerStatistics | None, rows: int
) -> Iterator[tuple[str, str]]:
    """What is wrong with stored states, each as its kind and a sentence.

    Args:
        found: statistics of the states as they were read.
        stated: what the index says of them, if it does.
        rows: T of the sample.
    """
    if found.n_nan:
        yield "nonfinite", f"{found.n_nan} NaN values are stored."
    if found.n_inf:
        yield "saturated", f"{found.n_inf} infinite values are stored."
    if found.n_zero_rows:
        yield "all_zero", f"{found.n_zero_rows} of {rows} rows are all zero; a real state never is."
    if found.n_nan or found.n_inf or found.n_zero_rows or stated is None:
        return
    difference = found.difference(stated)
    if difference is not None:
        yield "object_changed", difference


def rows_at_once(width: int) -> int:
    """Rows of `width` values that are best looked at together: they stay in a core's own cache."""
    return max(1, _VALUES_AT_ONCE // width)


def layer_statistics(states: npt.NDArray[Any]) -> LayerStatistics:
    """Statistics of `[T, H]` states: float16, or bfloat16 as uint16 bits."""
    rows, width = states.shape
    running = RunningStatistics(rows, width, states.dtype)
    step = rows_at_once(width)
    for start in range(0, rows, step):
        running.add(states[start : start + step])
    return running.of(states)


class RunningStatistics:
    """Statistics of one layer's states, as they come, block by block.

    Works on the bits: without its sign bit a number's bits order as its magnitude does, and
    numpy turns integers into float32 many times faster than float16 into float32.
    """

    def __init__(self, rows: int, width: int, dtype: np.dtype[Any]) -> None:
        """Begin with none of `rows` rows of `width` values, float16 or uint16 (bfloat16)."""
        self._measure = _Float16() if dtype == np.float16 else _BFloat16()
        self._largest = np.empty(rows, np.uint16)
        self._squares = np.empty(rows, np.float64)
        self._done = 0
        step = min(rows, rows_at_once(width))
        self._magnitude = np.empty((step, width), np.uint16)
        self._widened = np.empty((step, width), np.uint32)

    def add(self, block: npt.NDArray[Any]) -> None:
        """Take the next rows, `[n, H]` with n at most `rows_at_once(H)`."""
        start, stop = self._done, self._done + len(block)
        piece, wide = self._magnitude[: len(block)], self._widened[: len(block)]
        np.bitwise_and(block.view(np.uint16), _WITHOUT_SIGN, out=piece)
        np.maximum.reduce(piece, axis=1, out=self._largest[start:stop])
        np.copyto(wide, piece)
        values = self._measure.to_float32(wide)
        self._squares[start:stop] = np.vecdot(values, values)
        self._done = stop

    def of(self, states: npt.NDArray[Any]) -> LayerStatistics:
        """The statistics, all rows having come; `states` are all of them, `[T, H]`."""
        largest, squares = self._largest, self._squares
        n_zero_rows = int((largest == 0).sum())
        if largest.max() >= self._measure.infinity:
            return _with_nonfinite(states, n_zero_rows)
        greatest = largest.max(keepdims=True).astype(np.uint32)
        return LayerStatistics(
            absmax=float(self._measure.to_float32(greatest)[0]),
            rms=float(np.sqrt(squares.sum() / states.size)),
            min_row_rms=float(np.sqrt(squares.min() / states.shape[1])),
            n_zero_rows=n_zero_rows,
            n_nan=0,
            n_inf=0,
        )


def statistics_of_rows(
    norms: npt.NDArray[np.float32], largest: npt.NDArray[np.float32], width: int
) -> LayerStatistics | None:
    """Statistics of `[T, H]` states from what a device found of each row.

    Args:
        norms: `[T]` Euclidean norms.
        largest: `[T]` largest magnitudes.
        width: H.

    Returns:
        None where a row is not finite, which `layer_statistics` tells apart.
    """
    if not np.isfinite(norms).all():
        return None
    squares = norms.astype(np.float64) ** 2
    return LayerStatistics(
        absmax=float(largest.max()),
        rms=float(np.sqrt(squares.mean() / width)),
        min_row_rms=float(np.sqrt(squares.min() / width)),
        n_zero_rows=int((largest == 0).sum()),
        n_nan=0,
        n_inf=0,
    )


class _Float16:
    infinity = 0x7C00

    def to_float32(self, bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
        # Shifted into float32's place the exponent is 112 too low; this holds for subnormals too.
        np.left_shift(bits, 13, out=bits)
        values = bits.view(np.float32)
        np.multiply(values, np.float32(2.0**112), out=values)
        return values


class _BFloat16:
    infinity = 0x7F80

    def to_float32(self, bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
        np.left_shift(bits, 16, out=bits)
        return bits.view(np.float32)


def _with_nonfinite(states: npt.NDArray[Any], n_zero_rows: int) -> LayerStatistics:
    """The slow way, for states that will be refused: magnitudes over the finite values."""
    values = as_float32(states)
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    squares = np.einsum("th,th->t", finite, finite)
    return LayerStatistics(
        absmax=float(np.abs(finite).max()),
        rms=float(np.sqrt(squares.sum() / states.size)),
        min_row_rms=float(np.sqrt(squares.min() / states.shape[1])),
        n_zero_rows=n_zero_rows,
        n_nan=int(np.isnan(values).sum()),
        n_inf=int(np.isinf(values).sum()),
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
