"""The identity probe finds where states belong, and says nothing where nothing can be said."""

from __future__ import annotations

import pytest
import torch

from eagle3data.validation.significance import log_threshold
from eagle3data.validation.token_identity import Sequences, frequent_tokens
from tests.validation.synthetic import judged, states_of, texts

ALPHA = log_threshold(1000)


def test_right_states() -> None:
    samples = texts(20, 80)
    found, judge = judged(samples, states_of(samples), ALPHA)
    assert found.shift == 0
    assert found.by_shift[0] > 0.9
    assert judge.doubts() == []
    assert judge.enough == 20


@pytest.mark.parametrize("rows", [-5, -1, 1, 2])
def test_the_set_shifted(rows: int) -> None:
    samples = texts(20, 80)
    states = [s.roll(rows, 0) for s in states_of(samples)]
    found, judge = judged(samples, states, ALPHA)
    assert found.shift == -rows
    assert judge.doubts() == []


def test_one_sample_shifted() -> None:
    samples = texts(20, 80)
    states = states_of(samples)
    states[7] = states[7].roll(1, 0)
    _, judge = judged(samples, states, ALPHA)
    assert [(d.sample, d.shift, d.whole) for d in judge.doubts()] == [(7, -1, True)]


def test_a_strangers_states() -> None:
    samples = texts(20, 80)
    states = states_of(samples)
    states[3], states[4] = states[4], states[3]
    _, judge = judged(samples, states, ALPHA)
    assert [(d.sample, d.shift) for d in judge.doubts()] == [(3, None), (4, None)]


def test_a_shift_that_begins_late() -> None:
    samples = texts(20, 400)
    states = states_of(samples)
    states[5] = torch.cat([states[5][:300], states[5][301:], states[5][-1:]])
    _, judge = judged(samples, states, ALPHA)
    (doubt,) = judge.doubts()
    assert (doubt.sample, doubt.shift, doubt.whole) == (5, 1, False)
    assert abs(doubt.rows[0] - 300) <= 24
    assert doubt.rows[1] == 400


def test_noise_is_not_decided() -> None:
    samples = texts(20, 80)
    found, _ = judged(samples, states_of(texts(20, 80, seed=9)), ALPHA)
    assert found.shift is None


def test_random_states_never_stand_out_by_luck() -> None:
    samples = texts(10, 60)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        states = [torch.randn(60, 64, generator=generator).half() for _ in samples]
        found, judge = judged(samples, states, ALPHA)
        assert found.shift is None
        assert judge.doubts() == []


def test_runs_of_one_token_say_nothing_of_a_shift() -> None:
    """Inside a run every shift fits, whatever its states converge to."""
    samples = texts(20, 80)
    seen = [list(sample) for sample in samples]
    samples[4][10:70] = [5] * 30 + [9] * 30
    seen[4][10:70] = [5] * 18 + [9] * 42
    found, judge = judged(samples, states_of(seen), ALPHA)
    assert found.shift == 0
    assert judge.doubts() == []


def test_repetitions_are_known() -> None:
    repeating = Sequences.of([[5, 5, 5, 1, 2, 1, 2, 1, 2, 3], [3, 3, 4, 5, 4, 6]]).repeating
    assert repeating.nonzero().flatten().tolist() == [2, 6, 7, 8]


def test_shared_beginnings_are_known() -> None:
    sequences = Sequences.of([[1, 2, 3, 4], [1, 2, 9, 4], [5, 2, 3, 4]])
    assert sequences.shared.tolist() == [True, True, False, False] * 2 + [False] * 4


def test_shifted_tokens_stay_inside_their_sample() -> None:
    sequences = Sequences.of([[1, 2, 3], [4, 5]])
    assert sequences.shifted(1).tolist() == [2, 3, -1, 5, -1]
    assert sequences.shifted(-2).tolist() == [-1, -1, 1, -1, -1]


def test_tokens_of_one_half_only_have_no_class() -> None:
    sequences = Sequences.of([[0, 7, 7, 7, 7, 3, 3], [1, 8, 8, 8, 8, 3, 3]])
    assert frequent_tokens(sequences).tolist() == [3]
