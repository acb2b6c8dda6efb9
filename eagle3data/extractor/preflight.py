"""The first samples of a run, checked before anything of it is committed.

A wrong capture is wrong from its first sample on: better to stop after seconds than to find out
after a night. What is checked: that states are finite and not zero, that layers differ and their
magnitudes are such as residual streams have, and that float16 has room for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from eagle3data.schema.errors import InputError, SampleError
from eagle3data.schema.manifest import Manifest, StorageDtype
from eagle3data.schema.statistics import LayerStatistics

ENOUGH = 8
"""Samples after which the run is trusted."""
_FEW = 3
_FLOAT16_LARGEST = 65_504.0
_HEADROOM = 0.5
_SMALLEST_RMS, _LARGEST_RMS = 1e-5, 1e5

OnNotice = Callable[[str], None]


class Preflight:
    """Judges a run by its first samples; any thread may call it."""

    def __init__(
        self,
        manifest: Manifest,
        on_notice: OnNotice,
    ) -> None:
        """See nothing yet.

        Args:
            manifest: of the set that is written.
            on_notice: told what deserves a look.
        """
        self._manifest, self._on_notice = manifest, on_notice
        self._lock = threading.Lock()
        self._statistics: list[Mapping[int, LayerStatistics]] = []
        self._refused = 0
        self._judged = 0
        self._is_headroom_told = False

    def see(self, statistics: Mapping[int, LayerStatistics]) -> None:
        """Take note of a sample that is going to be written."""
        with self._lock:
            if len(self._statistics) >= ENOUGH:
                return
            self._statistics.append(dict(statistics))

    def refuse(self, error: SampleError) -> None:
        """Take note of a sample that can't be written.

        Raises:
            InputError: it shows that the run as a whole can't be right.
        """
        with self._lock:
            if len(self._statistics) >= ENOUGH:
                return
            self._refused += 1
            if error.kind == "saturated":
                raise InputError(
                    f"{error} It is among the first samples of the run, so many others will be "
                    "too large as well. Nothing that is committed is wrong. Start again with "
                    "--dtype bfloat16 and another --out."
                )
            if self._refused >= _FEW and self._refused > len(self._statistics):
                raise InputError(
                    f"{self._refused} of the first {self._refused + len(self._statistics)} samples "
                    f"came back unusable; the last of them: {error} The engine does not capture "
                    "this model rightly. Try --engine transformers, and report it."
                )

    def require(self) -> None:
        """Judge what was seen so far, unless enough was judged; call it before each commit.

        Raises:
            InputError: why the run can't be right.
        """
        with self._lock:
            if self._judged >= ENOUGH or self._judged == len(self._statistics):
                return
            self._judged = len(self._statistics)
            self._judge_magnitudes()

    def _judge_magnitudes(self) -> None:
        layers = self._manifest.layers
        absmax = {k: max(found[k].absmax for found in self._statistics) for k in layers}
        for layer in layers:
            rms = float(np.median([found[layer].rms for found in self._statistics]))
            if not _SMALLEST_RMS <= rms <= _LARGEST_RMS:
                raise InputError(
                    f"layer {layer}'s states have a root mean square of {rms:.3g}: no residual "
                    f"stream has that (expected {_SMALLEST_RMS:g} to {_LARGEST_RMS:g}). The engine "
                    "does not capture this model rightly; try --engine transformers."
                )
        for layer, other in pairwise(layers):
            if all(found[layer] == found[other] for found in self._statistics):
                raise InputError(
                    f"layers {layer} and {other} came back with the same states: the engine put "
                    "one layer into two slots. Try --engine transformers, and report it."
                )
        layer, largest = max(absmax.items(), key=lambda item: item[1])
        is_half = self._manifest.storage.dtype == StorageDtype.FLOAT16.value
        if is_half and largest > _HEADROOM * _FLOAT16_LARGEST and not self._is_headroom_told:
            self._is_headroom_told = True
            self._on_notice(
                f"layer {layer} reaches {largest:,.0f}, float16 ends at {_FLOAT16_LARGEST:,.0f}: "
                "samples that go beyond are left out. --dtype bfloat16 has room for all."
            )
