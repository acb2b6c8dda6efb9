"""Packs are full and ranks get equal work, on real lengths and on long tails."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3data.readers.order import epoch_order
from eagle3data.readers.packing import PackPlan
from eagle3data.readers.ranks import steps_of
from tests.support import CONVERSATIONS

BUDGET, RANKS = 8192, 8
REAL = np.array(json.loads(CONVERSATIONS.with_name("conversation_lengths.json").read_text()))
"""Tokens of 320 conversations of MT-Bench as SmolLM2's tokenizer has them."""

Lengths = npt.NDArray[np.int32]


def _planned(lengths: Lengths, seed: int = 0, budget: int = BUDGET) -> PackPlan:
    order = epoch_order(len(lengths), seed, 0)
    return PackPlan.whole(order, lengths[order], budget)


def _tokens_of_ranks(lengths: Lengths, plan: PackPlan, budget: int = BUDGET) -> list[list[int]]:
    """Tokens of every step, by rank."""
    return [
        [
            int(lengths[documents].sum())
            for documents in steps_of(
                plan, lengths, rank=rank, world_size=RANKS, start=0, token_budget=budget
            )
        ]
        for rank in range(RANKS)
    ]


def _drawn(name: str, count: int) -> Lengths:
    rng = np.random.default_rng(1)
    match name:
        case "real":
            drawn = rng.choice(REAL, count)
        case "lognormal":
            drawn = np.clip(rng.lognormal(6.2, 1.2, count), 8, BUDGET)
        case "pareto":
            drawn = np.clip(150 * (1 + rng.pareto(1.1, count)), 8, BUDGET)
        case _:
            drawn = rng.integers(200, 4001, count)
    return drawn.astype(np.int32)


@pytest.mark.parametrize("name", ["real", "lognormal", "pareto", "uniform"])
def test_little_padding_and_equal_ranks(name: str) -> None:
    lengths = _drawn(name, 6000)
    plan = _planned(lengths)
    assert 1 - lengths.sum() / (len(plan) * BUDGET) < 0.01
    of_ranks = [sum(steps) for steps in _tokens_of_ranks(lengths, plan)]
    assert sum(of_ranks) == lengths.sum()
    assert max(of_ranks) / min(of_ranks) < 1.02


def test_ranks_are_equal_on_a_set_of_a_few_steps() -> None:
    """36 packs are four steps and a half: the half is shared out over all ranks."""
    lengths = REAL.astype(np.int32)
    plan = _planned(lengths)
    assert len(plan) == 36
    steps = _tokens_of_ranks(lengths, plan)
    assert all(tokens > 0 for rank in steps for tokens in rank)
    of_ranks = [sum(rank) for rank in steps]
    assert max(of_ranks) / min(of_ranks) < 1.02


def test_documents_too_long_to_be_shared_out_stay_in_their_packs() -> None:
    lengths = np.array([60, 60, 40, 40, 40] * 3, np.int32)
    plan = _planned(lengths, budget=100)
    steps = _tokens_of_ranks(lengths, plan, budget=100)
    assert sum(map(sum, steps)) == lengths.sum()
    assert max(map(max, steps)) <= 100


@given(st.lists(st.integers(1, 100), max_size=400), st.integers(100, 300), st.integers(0))
def test_each_document_is_in_one_pack_within_the_budget(
    lengths: list[int], budget: int, seed: int
) -> None:
    tokens = np.array(lengths, np.int32)
    plan = _planned(tokens, seed, budget)
    packs = list(plan)
    assert sorted(one for members in packs for one in members) == list(range(len(lengths)))
    assert all(tokens[members].sum() <= budget for members in packs)
    steps = _tokens_of_ranks(tokens, plan, budget)
    assert len({len(rank) for rank in steps}) == 1
    assert all(count <= budget for rank in steps for count in rank)
    assert sum(map(sum, steps)) == sum(lengths)


@given(st.lists(st.integers(1, 20), max_size=200), st.data())
def test_what_comes_in_pieces_is_packed_as_if_it_had_come_at_once(
    lengths: list[int], data: st.DataObject
) -> None:
    order, tokens = np.arange(len(lengths)), np.array(lengths, np.int32)
    cut = data.draw(st.integers(0, len(lengths)))
    plan = PackPlan(20)
    plan.add(order[:cut], tokens[:cut])
    early = len(plan)
    plan.add(order[cut:], tokens[cut:])
    plan.close()
    assert early <= len(plan)
    assert list(plan) == list(PackPlan.whole(order, tokens, 20))
