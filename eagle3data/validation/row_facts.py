"""What is kept of every probed row and sample of one layer, gathered while its states pass by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from eagle3data.validation.measured import RmsByPosition

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float32]

FIRST_ROWS = 4
"""Rows that often are attention sinks, with norms of their own; profiles begin behind them."""
SMALL = 1 / 16
"""Of a row's rms: 5 % of normal numbers are smaller, more of heavier-tailed ones."""
_FEWEST_ROWS = 12
_SPREAD_ROWS = 64
_SMALLEST_NORMAL = 2.0**-14
_DROPPED_BITS = 7
"""float16's lowest mantissa bits that hold nothing of a bfloat16 number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowFacts:
    """One layer of the probed samples.

    Attributes:
        log_rms: `[R]` natural log of each row's rms; -inf for zero rows, NaN for not finite ones.
        digest: `[R]` uint64 of each row's stored bits.
        spread: `[n, H]` log of each dimension's median magnitude over some of a sample's rows
            behind the first (a few massive rows don't move it); NaN for samples of few rows.
        constant: `[n]` dimensions that hold one value in all of a sample's rows.
        capped: `[n]` dimensions that reach the sample's largest magnitude exactly.
        off_grid: `[n]` share of values that no bfloat16 number is, 0 to 1; NaN where the storage
            is bfloat16 itself.
        small: `[n]` share of values below `SMALL` of their row's rms; NaN without good rows.
        kept: by sample, the rows asked for: `[k, H]` float32.
    """

    log_rms: Floats
    digest: npt.NDArray[np.uint64]
    spread: Floats
    constant: npt.NDArray[np.int64]
    capped: npt.NDArray[np.int64]
    off_grid: Floats
    small: Floats
    kept: dict[int, Floats]


class RowCollector:
    """Sees the samples of a layer one by one."""

    def __init__(self, keep: dict[int, Sequence[int]]) -> None:
        """See nothing yet.

        Args:
            keep: by sample, places of rows whose values are kept.
        """
        self._keep = keep
        self._found: dict[int, dict[str, Any]] = {}
        self._kept: dict[int, Floats] = {}
        self._factors: npt.NDArray[np.uint64] | None = None

    def see(self, sample: int, states: Tensor) -> None:
        """Take note of a sample's `[T, H]` states in the storage dtype; once is enough."""
        import torch

        if sample in self._found:
            return
        bits = states.contiguous().view(torch.int16).numpy().view(np.uint16)
        values = states.float().numpy()
        size = np.abs(values)
        with np.errstate(all="ignore"):  # zero and not finite rows give -inf and NaN
            rms = np.sqrt(np.square(values).mean(1))
            log_rms = np.log(rms)
            spread = np.log(np.median(_some_rows(size), axis=0))
        self._found[sample] = {
            "log_rms": log_rms,
            "digest": self._digest(bits),
            "spread": spread if len(values) >= _FEWEST_ROWS else np.full_like(spread, np.nan),
            "constant": int((bits == bits[0]).all(0).sum()) if len(bits) >= _FEWEST_ROWS else 0,
            "capped": _capped(size),
            "off_grid": _off_grid(bits, size) if states.dtype == torch.float16 else np.nan,
            "small": _small(size, rms),
        }
        if sample in self._keep:
            self._kept[sample] = values[list(self._keep[sample])]

    def facts(self) -> RowFacts:
        """Of all samples that were seen, in their order."""
        ordered = [self._found[sample] for sample in sorted(self._found)]
        columns = {name: [found[name] for found in ordered] for name in _COLUMNS}
        return RowFacts(
            log_rms=np.concatenate(columns["log_rms"]),
            digest=np.concatenate(columns["digest"]),
            spread=np.stack(columns["spread"]),
            constant=np.array(columns["constant"]),
            capped=np.array(columns["capped"]),
            off_grid=np.array(columns["off_grid"], np.float32),
            small=np.array(columns["small"], np.float32),
            kept=self._kept,
        )

    def _digest(self, bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint64]:
        """A sum over words of four values, each mixed with an odd number of its own."""
        rows, width = bits.shape
        padded = np.zeros((rows, -(-width // 4) * 4), np.uint16)
        padded[:, :width] = bits
        words = padded.view(np.uint64)
        if self._factors is None:
            draw = np.random.default_rng(0)
            self._factors = draw.integers(0, 2**63, words.shape[1], np.uint64) * 2 + 1
        mixed = (words ^ (words >> np.uint64(29))) * self._factors
        found: npt.NDArray[np.uint64] = (mixed ^ (mixed >> np.uint64(32))).sum(1, dtype=np.uint64)
        return found


def _some_rows(size: Floats) -> Floats:
    behind = size[FIRST_ROWS:] if len(size) >= _FEWEST_ROWS else size
    return behind[:: -(-len(behind) // _SPREAD_ROWS)]


_COLUMNS = ("log_rms", "digest", "spread", "constant", "capped", "off_grid", "small")


def _capped(size: Floats) -> int:
    largest = size.max()
    return int((size == largest).any(0).sum()) if 0 < largest < np.inf else 0


def _small(size: Floats, rms: Floats) -> float:
    good = np.isfinite(rms) & (rms > 0)
    return float((size[good] < SMALL * rms[good, None]).mean()) if good.any() else math.nan


def _off_grid(bits: npt.NDArray[np.uint16], size: Floats) -> float:
    normal = size >= _SMALLEST_NORMAL
    off = (bits & np.uint16(_DROPPED_BITS) != 0) & normal
    return float(off.sum() / max(int(normal.sum()), 1))


def rms_by_position(facts: RowFacts, place: npt.NDArray[np.int64]) -> RmsByPosition:
    """Rows' rms along the samples, for reports.

    Args:
        facts: of one layer.
        place: `[R]` each row's position in its sample.
    """
    found = RmsByPosition()
    good = np.isfinite(facts.log_rms)
    rms, place = np.exp(facts.log_rms[good]), place[good]
    start, longest = 0, int(place.max(initial=-1)) + 1
    while start < longest:
        stop = min(longest, max(start + 1, start + start // 4))
        here = rms[(place >= start) & (place < stop)]
        if len(here):
            low, median, high = np.quantile(here, [0.05, 0.5, 0.95]).tolist()
            found.start.append(start)
            found.stop.append(stop)
            found.low.append(low)
            found.median.append(median)
            found.high.append(high)
        start = stop
    return found
