"""Number formats that numpy lacks: bfloat16 by its bits, and both float8 by tables.

All values of float8_e4m3fn and float8_e5m2 are exact in bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Float32 values as bfloat16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _e4m3fn() -> npt.NDArray[np.float32]:
    # 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, and all ones is NaN.
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    small = np.ldexp(mantissa / 8.0, -6)
    large = np.ldexp(1 + mantissa / 8.0, exponent - 7)
    values = np.where(exponent == 0, small, large)
    values[(code & 127) == 127] = np.nan
    return np.where(code >= 128, -values, values).astype(np.float32)


def _e5m2() -> npt.NDArray[np.float32]:
    # The upper half of a float16.
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


FLOAT8: dict[str, npt.NDArray[np.float32]] = {"float8_e4m3fn": _e4m3fn(), "float8_e5m2": _e5m2()}
"""Name to the value of each of the 256 codes."""

FLOAT8_AS_BFLOAT16 = {name: bfloat16_bits(values) for name, values in FLOAT8.items()}
"""Name to the bfloat16 bits of each of the 256 codes."""

_NAMES = {"uint16": "bfloat16", "float16": "float16", "float32": "float32"}


def dtype_name(states: npt.NDArray[Any]) -> str | None:
    """What states given as this array were stored in; None for what is no state's dtype."""
    return _NAMES.get(states.dtype.name)
