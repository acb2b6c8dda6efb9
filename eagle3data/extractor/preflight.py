"""The first samples of a run, checked before anything of it is committed.

A wrong capture is wrong from its first sample on: better to stop after seconds than to find out
after a night. What is checked: that states are finite and not zero, that layers differ and their
magnitudes are such as residual streams have, that float16 has room for them, and that the engine's
own next token follows from the last row that it handed over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import InputError, SampleError
from eagle3data.schema.manifest import Manifest, StorageDtype
from eagle3data.schema.sample import Sample, as_float32
from eagle3data.writers.statistics import LayerStatistics

if TYPE_CHECKING:
    from eagle3data.storage.model_weights import TargetHead
    from eagle3data.validation.witness import Reading

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
        load_head: Callable[[], TargetHead],
        on_notice: OnNotice,
    ) -> None:
        """See nothing yet.

        Args:
            manifest: of the set that is written.
            load_head: the target's norm and lm_head.
            on_notice: told what could not be checked, or deserves a look.
        """
        self._manifest, self._load_head, self._on_notice = manifest, load_head, on_notice
        self._lock = threading.Lock()
        self._statistics: list[Mapping[int, LayerStatistics]] = []
        self._rows: list[npt.NDArray[np.float32]] = []
        self._witnesses: list[tuple[int, float]] = []
        self._refused = 0
        self._judged = 0
        self._head: TargetHead | None = None
        self._is_head_sought = False
        self._is_headroom_told = False

    def see(self, sample: Sample, statistics: Mapping[int, LayerStatistics]) -> None:
        """Take note of a sample that is going to be written."""
        with self._lock:
            if len(self._statistics) >= ENOUGH:
                return
            self._statistics.append(dict(statistics))
            if sample.witness_token is not None and sample.witness_logprob is not None:
                last = sample.hidden_states[self._manifest.final_layer][-1:]
                self._rows.append(as_float32(last))
                self._witnesses.append((sample.witness_token, sample.witness_logprob))

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
            self._judge_witness()

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

    def _judge_witness(self) -> None:
        reading = self._reading()
        if reading is None:
            return
        agreeing = int(reading.agrees().sum())
        count = len(self._witnesses)
        if count >= _FEW and agreeing < count / 2:
            median = float(reading.difference.abs().median())
            raise InputError(
                f"the engine's own next token follows from its last state in {agreeing} of {count} "
                f"samples only (its log-probability is off by {median:.2g} nats): layer "
                f"{self._manifest.final_layer} is not what leaves the last decoder layer, or the "
                "states belong to other tokens, or --model has other weights than the engine. "
                "Nothing was committed."
            )

    def _reading(self) -> Reading | None:
        head = self._target_head()
        if head is None or not self._rows:
            return None
        import torch

        from eagle3data.validation import witness

        tokens, logprobs = zip(*self._witnesses, strict=True)
        return witness.read(
            head,
            torch.from_numpy(np.concatenate(self._rows)),
            torch.tensor(tokens),
            torch.tensor(logprobs, dtype=torch.float32),
            post_norm=False,
        )

    def _target_head(self) -> TargetHead | None:
        if not self._is_head_sought:
            self._is_head_sought = True
            if self._manifest.final_layer not in self._manifest.layers:
                self._on_notice("preflight: the final layer isn't kept, so no witness is checked.")
                return None
            try:
                self._head = self._load_head()
            except InputError as error:
                self._on_notice(f"preflight: the witness was not checked: {error}")
        return self._head
