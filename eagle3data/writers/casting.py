"""States in the dtype that a set stores: what an engine gives, rounded or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.schema.statistics import LayerStatistics, RunningStatistics, rows_at_once
from eagle3data.storage.arrays import states_dtype


def in_storage_dtype(manifest: Manifest, sample: Sample) -> Sample:
    """The sample with its states in the set's storage dtype; float32 and float64 are cast.

    A cast that overflows gives infinities, which `ShardWriter.append` refuses as `saturated`.
    """
    wanted = states_dtype(manifest)
    with np.errstate(over="ignore"):
        sample.hidden_states = {
            layer: states if states.dtype == wanted else cast_states(states, wanted)
            for layer, states in sample.hidden_states.items()
        }
    return sample


def cast_into(states: npt.NDArray[Any], out: npt.NDArray[Any]) -> LayerStatistics:
    """Copy one layer's states into `out`, in its dtype, and find the statistics of what is there.

    One pass: a block is copied, and looked at while it is in the core's own cache.

    Args:
        states: `[T, H]`, rows contiguous; float16, float32, or uint16 (bfloat16 by its bits).
        out: `[T, H]`, contiguous, float16 or uint16 (bfloat16).
    """
    rows, width = out.shape
    running = RunningStatistics(rows, width, out.dtype)
    step = rows_at_once(width)
    with np.errstate(over="ignore"):  # infinities are counted, and refused by `ShardWriter.append`
        for start in range(0, rows, step):
            block, there = states[start : start + step], out[start : start + step]
            np.copyto(there, block if block.dtype == out.dtype else cast_states(block, out.dtype))
            running.add(there)
    return running.of(out)


def cast_states(states: npt.NDArray[Any], wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    """States in another dtype; uint16 stands for the bits of bfloat16."""
    if states.dtype == np.uint16:
        states = (states.astype(np.uint32) << 16).view(np.float32)
    if wanted == np.uint16:
        # Round to nearest even, as hardware does; NaN keeps a set quiet bit.
        bits = np.ascontiguousarray(states, dtype=np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(states), np.uint16(0x7FC0), rounded)
    return states.astype(wanted)
