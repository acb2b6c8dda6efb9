"""Faults of a whole layer, which only the other layers show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from eagle3data.validation.across_layers import AcrossLayers
from eagle3data.validation.findings import Severity
from eagle3data.validation.row_facts import RowCollector
from eagle3data.validation.row_marks import Seen
from eagle3data.validation.token_identity import Sequences
from tests.validation.synthetic import texts

LAYERS, SAMPLES, LENGTH, WIDTH = (2, 15, 27, 30), 24, 60, 600
Change = Callable[[Tensor], Tensor]


def _stream() -> dict[int, list[Tensor]]:
    """A residual stream: each layer is the one before and something of its own, in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    states: dict[int, list[Tensor]] = {}
    before = [torch.randn(LENGTH, WIDTH, generator=generator) for _ in range(SAMPLES)]
    for layer in LAYERS:
        before = [rows + 0.7 * torch.randn(rows.shape, generator=generator) for rows in before]
        states[layer] = [rows.bfloat16().half() for rows in before]
    return states


def _seen(layer: int | None = None, change: Change | None = None) -> dict[int, list[Seen]]:
    states = _stream()
    if layer is not None and change is not None:
        states[layer] = [change(rows.float()).half() for rows in states[layer]]
    sequences = Sequences.of(texts(SAMPLES, LENGTH))
    mask = np.arange(LENGTH) >= LENGTH // 2
    across = AcrossLayers(sequences, [mask] * SAMPLES)
    for one, rows in states.items():
        collector = RowCollector({})
        for sample, each in enumerate(rows):
            collector.see(sample, each)
        across.look(one, collector.facts(), within=0.1)
        across.see_channels(one, torch.cat([each[4:] for each in rows]).float().numpy())
    return across.seen()


def _answers_scaled(rows: Tensor) -> Tensor:
    rows = rows.clone()
    rows[LENGTH // 2 :] *= 4
    return rows.bfloat16().float()


def test_a_right_stream_is_not_accused() -> None:
    assert _seen() == {}


@pytest.mark.parametrize("layer", [2, 27, 30])
def test_a_layer_rounded_by_other_arithmetic(layer: int) -> None:
    seen = _seen(layer, lambda rows: rows * 1.1)
    (found,) = seen.pop(layer)
    assert seen == {}
    assert "more digits than bfloat16 holds" in found.detail
    assert found.severity is Severity.ERROR


def test_a_stream_in_float32_is_not_accused() -> None:
    """Its embeddings are the checkpoint's bfloat16 all the same."""
    states = _stream()
    sequences = Sequences.of(texts(SAMPLES, LENGTH))
    across = AcrossLayers(sequences, [np.ones(LENGTH, bool)] * SAMPLES)
    for number, rows in {0: states[2], 15: states[15], 30: states[30]}.items():
        collector = RowCollector({})
        for sample, each in enumerate(rows):
            collector.see(sample, each if number == 0 else (each.float() * 1.1).half())
        across.look(number, collector.facts(), within=0.1)
    assert across.seen() == {}


def test_answers_treated_otherwise_than_prompts() -> None:
    seen = _seen(30, _answers_scaled)
    (found,) = seen.pop(30)
    assert seen == {}
    assert "rows with loss are 4 times as large" in found.detail


def test_dimensions_in_another_order_are_a_warning() -> None:
    half = WIDTH // 2
    seen = _seen(15, lambda rows: torch.cat([rows[:, half:], rows[:, :half]], 1))
    (found,) = seen.pop(15)
    assert seen == {}
    assert "another order" in found.detail
    assert found.severity is Severity.WARNING


def test_two_layers_say_nothing_of_each_other() -> None:
    states = _stream()
    sequences = Sequences.of(texts(SAMPLES, LENGTH))
    across = AcrossLayers(sequences, [np.ones(LENGTH, bool)] * SAMPLES)
    for layer in (2, 30):
        across.see_channels(layer, torch.cat(states[layer]).float().numpy())
    assert across.seen() == {}
