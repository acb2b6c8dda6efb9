"""The first samples decide whether a run goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from eagle3data.extractor.preflight import ENOUGH, Preflight
from eagle3data.schema.errors import InputError, SampleError
from eagle3data.schema.sample import Sample
from eagle3data.schema.statistics import layer_statistics
from tests.support import random_sample, small_manifest


def _run(change: Callable[[Sample], None] = lambda _: None, dtype: str = "float16") -> list[str]:
    """Notices of a run of changed samples."""
    manifest = small_manifest(storage_dtype=dtype)
    notices: list[str] = []
    preflight = Preflight(manifest, notices.append)
    for number in range(ENOUGH):
        sample = random_sample(f"s{number}", 20, number, manifest)
        change(sample)
        found = {k: layer_statistics(states) for k, states in sample.hidden_states.items()}
        preflight.see(found)
        preflight.require()
    return notices


def test_a_right_run_goes_on_without_a_word() -> None:
    assert _run() == []


def test_a_repeated_layer_stops_it() -> None:
    def repeat(sample: Sample) -> None:
        first, second, *_ = sample.hidden_states
        sample.hidden_states[first] = sample.hidden_states[second]

    with pytest.raises(InputError, match="came back with the same states"):
        _run(repeat)


def test_magnitudes_that_no_residual_stream_has_stop_it() -> None:
    def shrink(sample: Sample) -> None:
        for layer, states in sample.hidden_states.items():
            sample.hidden_states[layer] = states * np.float16(2e-6)

    with pytest.raises(InputError, match="no residual stream has that"):
        _run(shrink)


def test_little_headroom_is_told_once() -> None:
    def grow(sample: Sample) -> None:
        sample.hidden_states[min(sample.hidden_states)][0, 0] = 40_000

    notices = _run(grow)
    assert len(notices) == 1
    assert "--dtype bfloat16 has room" in notices[0]


def test_an_overflow_among_the_first_stops_it_and_says_what_to_do() -> None:
    preflight = Preflight(small_manifest(), lambda _: None)
    with pytest.raises(InputError, match="--dtype bfloat16 and another --out"):
        preflight.refuse(SampleError("saturated", "s0", "1 infinite state at layer 2."))


def test_one_bad_sample_does_not_stop_a_run_three_of_three_do() -> None:
    preflight = Preflight(small_manifest(), lambda _: None)
    zero = SampleError("all_zero", "s0", "all 20 rows of layer 2 are zero.")
    preflight.refuse(zero)
    preflight.refuse(zero)
    with pytest.raises(InputError, match="3 of the first 3 samples came back unusable"):
        preflight.refuse(zero)


def test_later_overflows_are_left_to_the_ledger() -> None:
    manifest = small_manifest()
    preflight = Preflight(manifest, lambda _: None)
    for number in range(ENOUGH):
        sample = random_sample(f"s{number}", 20, number, manifest)
        found = {k: layer_statistics(states) for k, states in sample.hidden_states.items()}
        preflight.see(found)
    preflight.refuse(SampleError("saturated", "s99", "1 infinite state at layer 2."))
