"""The parts of `--recompute`, on made-up numbers: which samples, which errors, which causes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState
from eagle3data.schema.manifest import StorageDtype
from eagle3data.validation.compared_layer import ComparedLayer, stretches
from eagle3data.validation.recompute import choose
from eagle3data.validation.recomputed import Recomputed
from eagle3data.validation.row_causes import STRANGE, Cause, find_causes
from eagle3data.validation.row_errors import LIMIT, RowErrors
from eagle3data.validation.significance import log_threshold
from tests.support import small_manifest

ROWS, WIDTH = 60, 32
ALPHA = log_threshold(1000)


def test_the_longest_and_the_middles_of_the_token_axis() -> None:
    lengths = np.array([10, 10, 10, 70, 10, 10, 90, 10, 10, 10])
    first = choose(lengths, 3)
    assert first[0] == 6
    assert first[1] == 3  # it holds the middle of the first half of the tokens
    assert first[:3] == choose(lengths, 3)[:3]
    assert sorted(first) == list(range(10))
    assert len(set(first[:3])) == 3


@pytest.mark.parametrize("wanted", [1, 2, 5, 50])
def test_every_sample_has_its_turn(wanted: int) -> None:
    assert sorted(choose(np.array([5, 5, 5]), wanted)) == [0, 1, 2]


def test_no_samples_to_recompute() -> None:
    from eagle3data import Recompute

    with pytest.raises(InputError, match="at least 1"):
        Recompute(0)


class Made:
    """Random states of three layers, their twins 1 % off, and what is stored of layer 4."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (ROWS, WIDTH)
        self.manifest = small_manifest(layers=[2, 4, 12])
        self.run = Recomputed(
            states={layer: torch.randn(shape, generator=generator) for layer in (2, 3, 4, 12)},
            twins={},
        )
        self.right = self.run.states[4]
        self.twin = self.right * (1 + 0.01 * torch.randn(shape, generator=generator))
        self.stored = self.right * (1 + 0.008 * torch.randn(shape, generator=generator))

    def errors(self) -> RowErrors:
        return RowErrors(
            stored=self.stored, right=self.right, twin=self.twin, dtype=StorageDtype.FLOAT16
        )

    def causes(self, layer: int = 4) -> list[Cause | None]:
        return find_causes(self.errors(), layer, self.run, lambda rows: rows / 7, self.manifest)

    def stretches(self) -> list[Any]:
        compared = ComparedLayer.of(0, 4, self.errors(), self.causes())
        return stretches(compared, LIMIT, ALPHA)


@pytest.fixture
def made() -> Made:
    return Made()


def test_right_rows_have_no_cause(made: Made) -> None:
    assert made.causes() == [None] * ROWS
    assert float(made.errors().units.max()) < 2
    assert made.stretches() == []


def test_a_lucky_twin_does_not_make_a_row_wrong(made: Made) -> None:
    made.twin[7] = made.right[7]
    assert made.causes()[7] is None


def test_a_row_that_rounds_a_lot_may_be_far_off(made: Made) -> None:
    """Large numbers that cancel: the twin is off as far as the stored row."""
    generator = torch.Generator().manual_seed(1)
    made.stored[7] += torch.randn(WIDTH, generator=generator)
    assert made.causes()[7] == STRANGE
    made.twin[7] += torch.randn(WIDTH, generator=generator)
    assert made.causes()[7] is None


def test_what_a_row_is(made: Made) -> None:
    made.stored[3] = made.right[40]
    made.stored[5] = made.run.states[3][5]
    made.stored[6] = made.run.states[2][6]
    made.stored[8] = 0
    made.stored[9, 0] = float("nan")
    made.stored[10, 0] = float("inf")
    made.stored[11] = -3 * made.right[11]
    found = made.causes()
    assert [(at, c.kind, c.number) for at, c in enumerate(found) if c is not None] == [
        (3, "shifted", 37),
        (5, "wrong_layer", 3),
        (6, "layers_swapped", 2),
        (8, "all_zero", 0),
        (9, "nonfinite", 0),
        (10, "saturated", 0),
        (11, "scaled", 0),
    ]


@pytest.mark.parametrize("state", list(NormState))
def test_norms_of_the_final_layer(made: Made, state: NormState) -> None:
    capture = made.manifest.capture.model_copy(update={"norm_state": state})
    made.manifest = made.manifest.model_copy(update={"capture": capture})
    residual = made.run.states[12]
    made.right = residual if state is NormState.PRE else residual / 7
    made.twin, made.stored = made.right * 1.01, made.right.clone()
    made.stored[4] = residual[4] / 7 if state is NormState.PRE else residual[4]
    made.stored[5] = residual[5] / 49
    found = {at: cause for at, cause in enumerate(made.causes(12)) if cause is not None}
    # This norm only scales, so the two explanations fit equally well; the norm is the nearer word.
    assert {at: cause.kind for at, cause in found.items()} == {
        4: "wrong_norm_state",
        5: "wrong_norm_state",
    }
    assert "twice" in found[5].words


def test_one_strange_row_is_no_stretch_but_a_run_is(made: Made) -> None:
    generator = torch.Generator().manual_seed(1)
    made.stored[20] = torch.randn(WIDTH, generator=generator)
    assert made.stretches() == []
    made.stored[20:40] = torch.randn(20, WIDTH, generator=generator)
    (stretch,) = made.stretches()
    assert (stretch.rows, stretch.bad, stretch.whole) == ((20, 40), 20, False)
    assert stretch.cause == STRANGE


def test_one_row_that_is_anothers_is_a_stretch(made: Made) -> None:
    made.stored[20] = made.right[19]
    (stretch,) = made.stretches()
    assert (stretch.rows, stretch.cause) == ((20, 21), Cause("shifted", -1))


def test_stretches_apart_are_told_apart(made: Made) -> None:
    made.stored[5:10] = made.right[4:9]
    made.stored[40:45] = made.run.states[2][40:45]
    assert [(s.rows, s.cause.kind) for s in made.stretches()] == [
        ((5, 10), "shifted"),
        ((40, 45), "layers_swapped"),
    ]


def test_few_rows_say_nothing_of_dimensions(made: Made) -> None:
    made.stored[:, 3] = 0
    errors = made.errors()
    assert errors.unlike_dimensions(torch.arange(ROWS) < 8) == []
    assert errors.unlike_dimensions(torch.arange(ROWS) < 40) == [3]
