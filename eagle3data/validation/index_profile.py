"""Every sample by its statistics in the index: no state is read.

A sample that was scaled has its rms, its largest value and its smallest row all off by one factor;
a text of another kind moves them apart. Two samples of different texts, or two layers of one
sample, whose statistics agree in every digit hold the same states.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.validation.unlike_rest import Doubles, reach

STATISTICS = ("rms", "absmax", "min_row_rms")
_NEIGHBOURS = 33
"""Samples of about a length that a sample is compared with: few massive first rows weigh more in
a short sample."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A sample with a layer of another magnitude than samples of its length have.

    Attributes:
        position: index row.
        layer: canonical id.
        factor: of its statistics over the others', at least.
        limit: the factor that nothing of the rest reaches, above 1.
    """

    position: int
    layer: int
    factor: float
    limit: float


class IndexProfile:
    """The statistics of every visible sample of a set."""

    def __init__(self, index: pa.Table, layers: Sequence[int]) -> None:
        """Take them from the index.

        Raises:
            ValueError: rows that don't have one value a layer.
        """
        self.layers = list(layers)
        self._lengths = index["length"].to_numpy()
        self._values = {name: _matrix(index[name], len(self.layers)) for name in STATISTICS}
        whole = sum(_matrix(index[name], len(self.layers)) for name in _BROKEN)
        self._whole = np.asarray(whole) == 0

    def scaled(self, floors: dict[int, float], log_alpha: float) -> list[Scaled]:
        """Samples with a layer whose magnitudes are all off by about one factor.

        Args:
            floors: by layer, the deviation (log) that is usual within one sample.
            log_alpha: threshold of a single one.
        """
        found = []
        order = np.argsort(self._lengths, kind="stable")
        if len(order) < _NEIGHBOURS:
            return []
        for column, layer in enumerate(self.layers):
            usable = order[self._whole[order, column]]
            usable = usable[self._values["min_row_rms"][usable, column] > 0]
            if len(usable) < _NEIGHBOURS:
                continue
            off = np.stack(
                [_off_neighbours(np.log(self._values[name][usable, column])) for name in STATISTICS]
            )
            common = np.where(np.abs(np.sign(off).sum(0)) == len(off), np.abs(off).min(0), 0.0)
            limit = max(floors[layer], reach(common, log_alpha))
            found += [
                Scaled(
                    position=int(usable[at]),
                    layer=layer,
                    factor=math.exp(math.copysign(common[at], off[0, at])),
                    limit=math.exp(limit),
                )
                for at in np.flatnonzero(common > limit)
            ]
        return found

    def equal_samples(self) -> list[tuple[int, int]]:
        """Pairs of index rows of one length whose statistics agree in every digit and layer."""
        whole = self._whole.all(1)
        together = np.concatenate(
            [self._lengths[:, None].astype(np.float64), *self._values.values()], axis=1
        )
        order = np.flatnonzero(whole)[np.lexsort(together[whole].T)]
        same = (together[order[1:]] == together[order[:-1]]).all(1)
        return [(int(order[at]), int(order[at + 1])) for at in np.flatnonzero(same)]

    def equal_layers(self) -> Iterator[tuple[int, int, list[int]]]:
        """Pairs of layers with the index rows in which all their statistics agree."""
        for one, other in itertools.combinations(range(len(self.layers)), 2):
            same = self._whole[:, one] & self._whole[:, other]
            for values in self._values.values():
                same &= values[:, one] == values[:, other]
            rows = np.flatnonzero(same).tolist()
            if rows:
                yield self.layers[one], self.layers[other], rows


_BROKEN = ("n_zero_rows", "n_nan", "n_inf")


def _matrix(column: pa.ChunkedArray[Any], layers: int) -> Doubles:
    chunks: list[Any] = column.chunks
    flat = np.concatenate([chunk.flatten().to_numpy() for chunk in chunks] or [np.empty(0)])
    return flat.astype(np.float64).reshape(len(column), layers)


def _off_neighbours(values: Doubles) -> Doubles:
    """Each value less the median of those around it, itself among them."""
    padded = np.pad(values, _NEIGHBOURS // 2, mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(padded, _NEIGHBOURS)
    found: npt.NDArray[np.float64] = values - np.median(around, axis=1)
    return found
