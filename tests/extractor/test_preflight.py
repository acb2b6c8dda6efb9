"""The first samples decide whether a run goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from eagle3data.extractor.preflight import ENOUGH, Preflight
from eagle3data.schema.errors import InputError, SampleError
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage.model_weights import TargetHead, UnknownHeadError
from eagle3data.writers.statistics import layer_statistics
from tests.support import HIDDEN, VOCABULARY, random_sample, small_manifest

HEAD = TargetHead(
    norm_weight=torch.ones(HIDDEN),
    norm_eps=1e-6,
    norm_offset=0,
    lm_head=torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(0)),
)


def _sample(number: int, manifest: Manifest) -> Sample:
    """With the witness that the head itself would give for its last row."""
    sample = random_sample(f"s{number}", 20, number, manifest)
    last = torch.from_numpy(sample.hidden_states[manifest.final_layer][-1:].astype(np.float32))
    logprobs = HEAD.logits(last)[0].log_softmax(0)
    sample.witness_token = int(logprobs.argmax())
    sample.witness_logprob = float(logprobs.max())
    return sample


def _run(change: Callable[[Sample], None] = lambda _: None, dtype: str = "float16") -> list[str]:
    """Notices of a run of changed samples."""
    manifest = small_manifest(storage_dtype=dtype)
    notices: list[str] = []
    preflight = Preflight(manifest, lambda: HEAD, notices.append)
    for number in range(ENOUGH):
        sample = _sample(number, manifest)
        change(sample)
        found = {k: layer_statistics(states) for k, states in sample.hidden_states.items()}
        preflight.see(sample, found)
        preflight.require()
    return notices


def _last(sample: Sample) -> npt.NDArray[np.float16]:
    states: npt.NDArray[np.float16] = sample.hidden_states[max(sample.hidden_states)]
    return states


def test_a_right_run_goes_on_without_a_word() -> None:
    assert _run() == []


def test_rows_shifted_by_one_stop_it() -> None:
    def shift(sample: Sample) -> None:
        _last(sample)[:] = np.roll(_last(sample), 1, axis=0)

    with pytest.raises(InputError, match=r"engine's own next token follows .* 0 of 3 samples"):
        _run(shift)


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
    preflight = Preflight(small_manifest(), lambda: HEAD, lambda _: None)
    with pytest.raises(InputError, match="--dtype bfloat16 and another --out"):
        preflight.refuse(SampleError("saturated", "s0", "1 infinite state at layer 2."))


def test_one_bad_sample_does_not_stop_a_run_three_of_three_do() -> None:
    preflight = Preflight(small_manifest(), lambda: HEAD, lambda _: None)
    zero = SampleError("all_zero", "s0", "all 20 rows of layer 2 are zero.")
    preflight.refuse(zero)
    preflight.refuse(zero)
    with pytest.raises(InputError, match="3 of the first 3 samples came back unusable"):
        preflight.refuse(zero)


def test_later_overflows_are_left_to_the_ledger() -> None:
    manifest = small_manifest()
    preflight = Preflight(manifest, lambda: HEAD, lambda _: None)
    for number in range(ENOUGH):
        sample = _sample(number, manifest)
        found = {k: layer_statistics(states) for k, states in sample.hidden_states.items()}
        preflight.see(sample, found)
    preflight.refuse(SampleError("saturated", "s99", "1 infinite state at layer 2."))


def test_a_head_that_is_not_known_is_told_and_does_not_stop_it() -> None:
    def unknown() -> TargetHead:
        raise UnknownHeadError("m: how a 'new' model gets to logits is not known here.")

    manifest = small_manifest()
    notices: list[str] = []
    preflight = Preflight(manifest, unknown, notices.append)
    sample = _sample(0, manifest)
    found = {k: layer_statistics(states) for k, states in sample.hidden_states.items()}
    preflight.see(sample, found)
    preflight.require()
    assert len(notices) == 1
    assert "witness was not checked" in notices[0]
