"""Rows and samples that are unlike the rest, contradict it or repeat it, and those that don't."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from eagle3data.validation import duplicates, same_context
from eagle3data.validation.row_facts import RowCollector, RowFacts, rms_by_position
from eagle3data.validation.significance import log_threshold
from eagle3data.validation.token_identity import Sequences
from eagle3data.validation.unlike_rest import Magnitudes, Unlike, unlike_dimensions
from tests.validation.synthetic import WIDTH, texts

ALPHA = log_threshold(1000)


def gathered(states: Sequence[Tensor], keep: dict[int, Sequence[int]] | None = None) -> RowFacts:
    collector = RowCollector(keep or {})
    for sample, rows in enumerate(states):
        collector.see(sample, rows)
    return collector.facts()


def normal(lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Rows of about one size, as bfloat16 made them, stored as float16."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in lengths:
        size = torch.randn(length, 1, generator=generator).mul(0.15).exp()
        rows = size * torch.randn(length, WIDTH, generator=generator)
        found.append(rows.bfloat16().half())
    return found


def unlike(states: list[Tensor], seed: int = 0) -> list[Unlike]:
    samples = [texts(1, len(rows), seed + at)[0] for at, rows in enumerate(states)]
    return Magnitudes(gathered(states), Sequences.of(samples), ALPHA).unlike()


# Magnitudes.


def test_a_scaled_sample() -> None:
    states = normal([80] * 20)
    states[7] *= 3
    (found,) = unlike(states)
    assert (found.sample, found.rows) == (7, None)
    assert found.factor == pytest.approx(3, rel=0.1)
    assert 1 < found.limit < 3


def test_a_range_of_positions() -> None:
    states = normal([400] * 12)
    states[4][200:296] *= 0.25
    (found,) = unlike(states)
    assert found.sample == 4
    assert found.rows is not None
    assert abs(found.rows[0] - 200) <= 16
    assert abs(found.rows[1] - 296) <= 16


def test_a_position_at_which_all_texts_change() -> None:
    states = normal([400] * 12)
    for rows in states:
        rows[256:] *= 2
    (found,) = unlike(states)
    assert found.sample is None
    assert found.rows is not None
    assert abs(found.rows[0] - 256) <= 32


def test_a_fifth_of_the_samples() -> None:
    states = normal([80] * 20)
    for sample in range(0, 20, 5):
        states[sample] *= 4
    assert {found.sample for found in unlike(states)} == {0, 5, 10, 15}


@pytest.mark.parametrize("seed", range(10))
def test_clean_magnitudes_are_not_accused(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(5, 300, 40).tolist()
    assert unlike(normal(lengths, seed), seed) == []


def test_two_kinds_of_text_are_not_accused() -> None:
    """One sample of a kind that differs by less than the words of a text do."""
    states = normal([80] * 20)
    states[3] *= 1.3
    assert unlike(states) == []


def test_massive_first_rows_and_massive_single_rows_are_not_accused() -> None:
    states = normal([80] * 20)
    for rows in states:
        rows[0] *= 500
    states[6][40] *= 500
    assert unlike(states) == []


def test_few_samples_have_no_rest() -> None:
    states = normal([80] * 5)
    states[2] *= 9
    assert unlike(states) == []


def test_one_token_over_and_over_is_not_accused() -> None:
    states = normal([80] * 20)
    states[7] *= 3
    samples = texts(20, 80)
    samples[7] = [3] * 80
    assert Magnitudes(gathered(states), Sequences.of(samples), ALPHA).unlike() == []


def test_a_dimension_of_one_sample() -> None:
    states, varied = normal([80] * 20), np.ones(20, bool)
    assert unlike_dimensions(gathered(states), varied, ALPHA) == []
    states[4][:, 9] *= 2.0**-12
    ((sample, dimension, factor),) = unlike_dimensions(gathered(states), varied, ALPHA)
    assert (sample, dimension) == (4, 9)
    assert factor < 0.001


# What is gathered of rows.


def test_marks_of_other_arithmetic() -> None:
    states = normal([50] * 3)
    states[1] = (states[1].float() * 1.25).half()
    states[2] = states[2].float().bfloat16().view(torch.float16)
    facts = gathered(states)
    assert facts.off_grid[0] == 0
    assert facts.off_grid[1] > 0.4
    assert facts.small[0] > 0.03
    assert facts.small[2] < 0.01


def test_marks_of_a_clip() -> None:
    states = normal([50] * 2)
    states[1] = states[1].clamp(-1, 1)
    assert gathered(states).capped.tolist()[0] < 4
    assert gathered(states).capped.tolist()[1] == WIDTH


def test_zero_and_not_finite_rows_do_not_disturb() -> None:
    states = normal([50] * 12)
    states[0][:] = 0
    states[1][7] = float("nan")
    states[2][7, 3] = float("inf")
    facts = gathered(states)
    assert np.isneginf(facts.log_rms[:50]).all()
    assert np.isnan(facts.log_rms[57])
    assert facts.capped[:3].tolist() == [0, 0, 0]
    assert Magnitudes(facts, Sequences.of(texts(12, 50)), ALPHA).unlike() == []
    profile = rms_by_position(facts, np.tile(np.arange(50), 12))
    assert profile.start[0] == 0
    assert profile.stop[-1] == 50
    assert all(np.isfinite(profile.median))


# Equal contexts.


def begun_alike(count: int, shared: int) -> tuple[list[list[int]], list[Tensor]]:
    """Samples that share their first tokens, and states that do."""
    samples, states = texts(count, 40), normal([40] * count)
    for sample, rows in zip(samples, states, strict=True):
        sample[:shared] = [(7 * at + 1) % 40 for at in range(shared)]
        rows[:shared] = states[0][:shared]
    return samples, states


def contradicting(samples: list[list[int]], states: list[Tensor]) -> list[int]:
    groups = same_context.groups(Sequences.of(samples))
    kept = gathered(states, same_context.wanted_rows(groups)).kept
    return sorted(
        found.sample for group in groups for found in same_context.contradictions(group, kept)
    )


def test_groups_are_as_deep_as_enough_samples_share() -> None:
    samples, _ = begun_alike(12, 20)
    assert [(len(g.samples), g.tokens) for g in same_context.groups(Sequences.of(samples))] == [
        (12, 16)
    ]
    other = [[30, *sample[1:]] for sample in samples[:5]]
    found = same_context.groups(Sequences.of([*samples, *other, [39, 1, 1]]))
    assert sorted(len(group.samples) for group in found) == [5, 12]
    assert all(17 not in group.samples for group in found)


@pytest.mark.parametrize("factor", [1.125, 0.5, 2.0])
def test_a_sample_that_contradicts_the_others(factor: float) -> None:
    samples, states = begun_alike(12, 20)
    assert contradicting(samples, states) == []
    states[5] = states[5] * factor
    assert contradicting(samples, states) == [5]


def test_five_of_twelve_contradict_the_others() -> None:
    samples, states = begun_alike(12, 20)
    for at in range(5):
        states[at] = states[at] * 1.5
    assert contradicting(samples, states) == [0, 1, 2, 3, 4]


def test_rounding_is_no_contradiction() -> None:
    samples, states = begun_alike(12, 20)
    generator = torch.Generator().manual_seed(1)
    noisy = [(rows + 0.02 * torch.randn(rows.shape, generator=generator)).half() for rows in states]
    assert contradicting(samples, noisy) == []


def test_massive_dimensions_that_round_wildly_are_no_contradiction() -> None:
    samples, states = begun_alike(12, 20)
    for at, rows in enumerate(states):
        rows[:, :2] = 20_000 * (1 + 0.3 * at)
    assert contradicting(samples, states) == []


def test_an_eighth_of_the_dimensions_contradicts() -> None:
    samples, states = begun_alike(12, 20)
    states[5][:, 8:16] = states[6][:, 8:16].roll(1, 0)
    assert contradicting(samples, states) == [5]


def test_contexts_with_something_unseen_in_them_are_not_accused() -> None:
    """An image behind placeholder tokens: the group shows that its tokens don't explain it."""
    samples, _ = begun_alike(12, 20)
    assert contradicting(samples, normal([40] * 12, seed=3)) == []


# Equal rows.


def repeated(samples: list[list[int]], states: list[Tensor]) -> list[duplicates.Repeated]:
    sequences, facts = Sequences.of(samples), gathered(states)
    contexts = duplicates.context_digests(sequences)
    return duplicates.repeated_rows(sequences, contexts, facts.digest, np.isfinite(facts.log_rms))


def test_equal_beginnings_are_explained() -> None:
    samples, states = begun_alike(12, 20)
    assert repeated(samples, states) == []


def test_a_tail_of_one_row() -> None:
    samples, states = texts(6, 40), normal([40] * 6)
    states[2][30:] = states[2][30].clone()
    (found,) = repeated(samples, states)
    assert (found.sample, found.other, found.rows, found.count) == (2, 2, (30, 40), 10)


def test_states_of_another_sample() -> None:
    """Which of the two is right can't be told from their being equal."""
    samples, states = texts(6, 40), normal([40] * 6)
    states[4] = states[1].clone()
    found = repeated(samples, states)
    assert [(one.sample, one.other, one.outvoted) for one in found] == [
        (1, 4, False),
        (4, 1, False),
    ]


def test_a_shift_shows_in_a_common_beginning() -> None:
    samples, states = begun_alike(6, 20)
    states[3] = states[3].roll(1, 0)
    (found,) = repeated(samples, states)
    assert (found.sample, found.shift, found.outvoted) == (3, -1, True)


def test_one_token_over_and_over_may_converge() -> None:
    samples, states = texts(6, 40), normal([40] * 6)
    samples[2] = [5] * 40
    states[2][10:] = states[2][10].clone()
    assert repeated(samples, states) == []


def test_one_token_from_the_beginning_on_has_the_states_of_one() -> None:
    """Attention over equal values gives that value, however many they are."""
    samples, states = texts(6, 40), normal([40] * 6)
    for sample, rows in zip(samples, states, strict=True):
        sample[0], rows[0] = 5, states[0][0]
    samples[3][:4] = [5] * 4
    states[3][:4] = states[0][0]
    assert repeated(samples, states) == []
    samples[3][2] = 6
    (found,) = repeated(samples, states)
    assert (found.sample, found.rows) == (3, (2, 4))


def test_zero_rows_are_not_told_as_equal() -> None:
    samples, states = texts(6, 40), normal([40] * 6)
    states[2][:] = 0
    assert repeated(samples, states) == []


def test_embeddings_in_place_of_states() -> None:
    samples = texts(6, 40)
    vectors = normal([40])[0]
    sequences = Sequences.of(samples)
    embedded = gathered([vectors[sample] for sample in samples])
    share, tokens = duplicates.token_only_share(sequences, embedded.digest)
    assert (share, tokens) == (1.0, 40)
    states = gathered(normal([40] * 6))
    assert duplicates.token_only_share(sequences, states.digest)[0] == 0


def test_digests_tell_rows_apart() -> None:
    rows = torch.zeros(WIDTH, WIDTH).half()
    for at in range(WIDTH):
        rows[at, at] = 1
    digests = gathered([rows]).digest
    assert len(np.unique(digests)) == WIDTH
    assert all(a != b for a, b in itertools.pairwise(digests.tolist()))
