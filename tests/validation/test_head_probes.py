"""The probes through a head: next token, norm state, trained or random, witness, layer profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from eagle3data.storage.model_weights import TargetHead
from eagle3data.validation import next_token, witness
from eagle3data.validation.layer_profile import misplaced
from eagle3data.validation.owners import find_owner
from eagle3data.validation.significance import log_threshold
from eagle3data.validation.token_identity import Sequences
from tests.validation.synthetic import VOCABULARY, WIDTH, texts

ALPHA = log_threshold(1000)


def a_head(rows: int = VOCABULARY) -> TargetHead:
    generator = torch.Generator().manual_seed(3)
    return TargetHead(
        norm_weight=torch.randn(WIDTH, generator=generator).mul(2).exp(),
        norm_eps=1e-5,
        norm_offset=0,
        lm_head=0.3 * torch.randn(rows, WIDTH, generator=generator),
    )


def some_rows(count: int, seed: int) -> Tensor:
    rows: Tensor = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return rows


def foretelling(head: TargetHead, sequences: Sequences, size: float = 9.0) -> Tensor:
    """States whose likeliest next token is the one that follows, before the norm."""
    following = sequences.shifted(1).clamp(min=0)
    generator = torch.Generator().manual_seed(4)
    noise = torch.randn(len(following), WIDTH, generator=generator)
    states: Tensor = size * (head.lm_head[following] + 0.25 * noise) / head.norm_weight
    return states


def probed(
    head: TargetHead, states: Tensor, sequences: Sequences, *, post: bool
) -> next_token.NextToken:
    rows = next_token.choose_rows(sequences)
    targets = {shift: sequences.shifted(shift)[rows] for shift in next_token.SHIFTS}
    return next_token.measure(head, states[rows], targets, ALPHA, post_norm=post, likelihood=True)


def test_next_token_and_norm_state() -> None:
    head, sequences = a_head(), Sequences.of(texts(12, 40))
    pre = foretelling(head, sequences)
    for states, right in ((pre, False), (head.normed(pre), True)):
        rightly, wrongly = (
            probed(head, states, sequences, post=post) for post in (right, not right)
        )
        assert rightly.shift == 1
        assert next_token.reads_better(rightly, wrongly, ALPHA)
        assert not next_token.reads_better(wrongly, rightly, ALPHA)


def test_next_token_of_shifted_and_of_meaningless_states() -> None:
    head, sequences = a_head(), Sequences.of(texts(12, 40))
    states = foretelling(head, sequences)
    assert probed(head, states.roll(1, 0), sequences, post=False).shift == 0
    assert probed(head, some_rows(len(states), 8), sequences, post=False).shift is None


def test_all_probed_rows_have_all_their_shifts() -> None:
    sequences = Sequences.of([*texts(5, 40), [1, 2, 3]])
    rows = next_token.choose_rows(sequences)
    assert all(bool((sequences.shifted(s)[rows] >= 0).all()) for s in next_token.SHIFTS)
    assert int(sequences.sample_of[rows].max()) == 4


def test_random_heads_are_known_from_trained_ones() -> None:
    head = a_head(2000)
    assert not next_token.is_trained(head)
    common = torch.ones(2000, 1).cumsum(0).sin() @ some_rows(1, 6)
    assert next_token.is_trained(
        TargetHead(
            norm_weight=head.norm_weight,
            norm_eps=1e-5,
            norm_offset=0,
            lm_head=head.lm_head + common,
        )
    )


def engine(head: TargetHead, rows: Tensor) -> tuple[Tensor, Tensor]:
    """What an engine says: tokens and log-probabilities from bfloat16 logits."""
    logprobs = head.logits(rows).bfloat16().float().log_softmax(-1)
    best = logprobs.max(-1)
    return best.indices, best.values


def test_witness_agrees_up_to_the_engines_rounding() -> None:
    head = a_head()
    rows = some_rows(50, 6)
    tokens, logprobs = engine(head, rows)
    bad, whole = witness.disagreeing(witness.read(head, rows, tokens, logprobs, post_norm=False))
    assert not bad.any()
    assert not whole


def test_witness_names_the_samples_that_disagree() -> None:
    head = a_head()
    rows = some_rows(50, 6)
    tokens, logprobs = engine(head, rows)
    rows[[4, 9]] = some_rows(2, 7)
    bad, whole = witness.disagreeing(witness.read(head, rows, tokens, logprobs, post_norm=False))
    assert bad.nonzero().flatten().tolist() == [4, 9]
    assert not whole


@pytest.mark.parametrize("near", [0.5, 5.0])
def test_witness_against_a_whole_set(near: float) -> None:
    head = replace(a_head(), norm_weight=torch.ones(WIDTH))
    rows = some_rows(50, 6)
    tokens, logprobs = engine(head, rows)
    other = rows + near * some_rows(50, 7)
    _, whole = witness.disagreeing(witness.read(head, other, tokens, logprobs, post_norm=False))
    assert whole


def test_misplaced_layers() -> None:
    generator = torch.Generator().manual_seed(5)
    profiles = {
        layer: torch.randn(WIDTH, generator=generator)
        + 0.2 * torch.randn(20, WIDTH, generator=generator)
        for layer in (2, 6, 9)
    }
    assert misplaced(profiles) == []
    profiles[2][7], profiles[6][7] = profiles[6][7].clone(), profiles[2][7].clone()
    assert misplaced(profiles) == [(7, 2, 6), (7, 6, 2)]


def test_owner_of_predictions() -> None:
    candidates = [np.array(text, dtype=np.int32) for text in texts(30, 50)]
    places = np.arange(40)
    predicted = candidates[11][places].astype(np.int64)
    predicted[::3] = -1
    assert find_owner(predicted, places, candidates, 2, ALPHA) == 11
    assert find_owner(predicted, places, candidates, 11, ALPHA) is None
