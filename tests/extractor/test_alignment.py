"""A shard whose states don't belong to its tokens stops the run before its commit."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from eagle3data.extractor.alignment import FROZEN_ROWS, AlignmentWatch
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage.model_weights import TargetHead, UnknownHeadError
from tests.support import HIDDEN, small_manifest

TOKENS = 40
"""So few that every one is common."""
SAMPLES_A_SHARD = 4
_VECTORS = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
_HEAD = TargetHead(
    norm_weight=torch.ones(HIDDEN),
    norm_eps=1e-6,
    norm_offset=0,
    lm_head=torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(2)),
)

Change = Callable[[int, Sample], None]


def _sample(number: int, manifest: Manifest, length: int = 60) -> Sample:
    """States that carry their token, and the witness that the head itself gives."""
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(0, TOKENS, (length,), generator=generator)
    states = {
        layer: (_VECTORS[ids] + 0.7 * torch.randn(length, HIDDEN, generator=generator)).half()
        for layer in manifest.layers
    }
    logprobs = _HEAD.logits(states[manifest.final_layer][-1:].float())[0].log_softmax(0)
    return Sample(
        hidden_states={layer: rows.numpy() for layer, rows in states.items()},
        input_ids=ids.numpy(),
        loss_mask=np.ones(length),
        sample_id=f"s{number}",
        witness_token=int(logprobs.argmax()),
        witness_logprob=float(logprobs.max()),
    )


def _nothing(_: int, __: Sample) -> None:
    pass


def _run(change: Change = _nothing, shards: int = 12) -> int:
    """Shards that were let through."""
    manifest = small_manifest()
    watch = AlignmentWatch(manifest, shards * SAMPLES_A_SHARD, "/a/set", lambda: _HEAD, pytest.fail)
    for shard in range(shards):
        for at in range(SAMPLES_A_SHARD):
            number = shard * SAMPLES_A_SHARD + at
            sample = _sample(number, manifest)
            change(number, sample)
            watch.see(sample, shard)
        watch.require(shard)
    return shards


def _shift(rows: int) -> Callable[[Sample], None]:
    def shift(sample: Sample) -> None:
        for layer, states in sample.hidden_states.items():
            sample.hidden_states[layer] = np.roll(states, rows, axis=0)

    return shift


def test_a_right_run_goes_on() -> None:
    assert _run(shards=30) == 30


@pytest.mark.parametrize("rows", [1, -2])
def test_a_run_shifted_as_a_whole_stops_early(rows: int) -> None:
    def aux_only(_: int, sample: Sample) -> None:
        low = min(sample.hidden_states)
        sample.hidden_states[low] = np.roll(sample.hidden_states[low], rows, axis=0)

    with pytest.raises(CorruptionError, match=re.escape(f"state of token t{-rows:+d}")) as told:
        _run(aux_only)
    assert told.value.kind == "shifted"
    assert told.value.shard is not None
    assert told.value.shard * SAMPLES_A_SHARD * 60 < 3 * FROZEN_ROWS


def test_one_shifted_sample_stops_its_shard() -> None:
    def change(number: int, sample: Sample) -> None:
        if number == 33:
            low = min(sample.hidden_states)
            sample.hidden_states[low] = np.roll(sample.hidden_states[low], 1, axis=0)

    with pytest.raises(CorruptionError, match="row t holds the state of token t-1") as told:
        _run(change)
    assert (told.value.kind, told.value.sample_id, told.value.shard) == ("shifted", "s33", 8)
    assert "was not committed" in str(told.value)


def test_another_requests_rows_stop_their_shard() -> None:
    def change(number: int, sample: Sample) -> None:
        if number == 41:
            other = _sample(1000, small_manifest())
            low = min(sample.hidden_states)
            sample.hidden_states[low] = other.hidden_states[low]

    with pytest.raises(CorruptionError, match="not those of its tokens") as told:
        _run(change)
    assert (told.value.kind, told.value.sample_id) == ("swapped_samples", "s41")


def test_a_final_state_of_another_token_stops_its_shard() -> None:
    def change(number: int, sample: Sample) -> None:
        if number == 22:
            high = max(sample.hidden_states)
            sample.hidden_states[high] = np.roll(sample.hidden_states[high], 1, axis=0)

    with pytest.raises(CorruptionError, match="1 of the shard's 4 samples") as told:
        _run(change)
    assert told.value.kind == "witness_mismatch"
    assert (told.value.sample_id, told.value.shard) == ("s22", 5)


def test_a_final_layer_that_is_none_stops_the_first_shard() -> None:
    def change(_: int, sample: Sample) -> None:
        states = sample.hidden_states
        states[max(states)] = states[min(states)][::-1].copy()

    with pytest.raises(CorruptionError, match="0 of 4 samples only") as told:
        _run(change)
    assert told.value.shard == 0


def test_a_bad_sample_among_the_first_is_named_once_it_can_be_told() -> None:
    def change(number: int, sample: Sample) -> None:
        if number == 1:
            low = min(sample.hidden_states)
            sample.hidden_states[low] = np.roll(sample.hidden_states[low], 1, axis=0)

    with pytest.raises(CorruptionError, match="row t holds the state of token t-1") as told:
        _run(change)
    assert (told.value.sample_id, told.value.shard) == ("s1", 0)
    assert "`repair`, put the sample aside" in str(told.value)


def test_states_of_random_weights_accuse_nobody() -> None:
    def change(number: int, sample: Sample) -> None:
        rng = np.random.default_rng(number)
        for layer, states in sample.hidden_states.items():
            if layer != max(sample.hidden_states):
                sample.hidden_states[layer] = rng.standard_normal(states.shape).astype(np.float16)

    assert _run(change, shards=30) == 30


def test_a_head_that_is_not_known_is_told_once() -> None:
    def unknown() -> TargetHead:
        raise UnknownHeadError("m: how a 'new' model gets to logits is not known here.")

    manifest = small_manifest()
    notices: list[str] = []
    watch = AlignmentWatch(manifest, 8, "/a/set", unknown, notices.append)
    for shard in range(2):
        watch.see(_sample(shard, manifest), shard)
        watch.require(shard)
    assert len(notices) == 1
    assert "witness is not checked" in notices[0]
