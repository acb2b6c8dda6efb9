"""Layer numbering: Kimi-K2.5's numbers, shallow targets, conversions both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3data.schema.errors import LayerError
from eagle3data.schema.layers import (
    Numbering,
    default_layers,
    from_canonical,
    missing_final_layer,
    parse_layers,
    to_canonical,
)

KIMI = 61


def test_kimi_auto() -> None:
    assert default_layers(KIMI) == [2, 30, 58, 61]
    assert parse_layers("auto", KIMI) == [2, 30, 58, 61]


def test_smollm2_auto() -> None:
    assert default_layers(30) == [2, 15, 27, 30]


@given(st.integers(3, 200))
def test_auto_has_three_distinct_aux_layers_and_the_final_one(n: int) -> None:
    layers = default_layers(n)
    assert len(set(layers)) == 4
    assert layers == sorted(layers)
    assert layers[-1] == n


@pytest.mark.parametrize("n", [1, 2])
def test_too_shallow(n: int) -> None:
    with pytest.raises(LayerError, match="at least 3"):
        default_layers(n)


def test_list_without_final_layer_needs_its_numbering() -> None:
    with pytest.raises(LayerError, match="final layer 61 is not captured"):
        parse_layers("2,30,58,60", KIMI)
    assert parse_layers("2,30,58,60", KIMI, Numbering.VLLM) == [2, 30, 58, 60]
    flagged = missing_final_layer([2, 30, 58, 60], KIMI)
    assert flagged is not None
    assert "in SGLang's numbering the same id would mean 61" in flagged
    assert missing_final_layer([2, 30, 58, 61], KIMI) is None


def test_sglang_is_one_lower() -> None:
    assert to_canonical([1, 29, 57, 60], Numbering.SGLANG, KIMI) == [2, 30, 58, 61]
    assert from_canonical([2, 30, 58], Numbering.SGLANG, KIMI) == [1, 29, 57]
    assert parse_layers("1,29,57,60", KIMI, Numbering.SGLANG) == [2, 30, 58, 61]
    with pytest.raises(LayerError, match="no id for the embeddings"):
        from_canonical([0], Numbering.SGLANG, KIMI)


def test_hugging_face_last_is_after_the_norm() -> None:
    assert to_canonical([2, 30], Numbering.HUGGINGFACE, KIMI) == [2, 30]
    with pytest.raises(LayerError, match="AFTER the final norm"):
        to_canonical([61], Numbering.HUGGINGFACE, KIMI)
    assert to_canonical([61], Numbering.HUGGINGFACE, KIMI, post_norm=True) == [61]
    with pytest.raises(LayerError, match="before the final norm"):
        from_canonical([61], Numbering.HUGGINGFACE, KIMI)


@given(st.data(), st.sampled_from(list(Numbering)))
def test_conversion_round_trip(data: st.DataObject, numbering: Numbering) -> None:
    n = data.draw(st.integers(3, 100))
    layers = sorted(data.draw(st.sets(st.integers(1, n - 1), min_size=1)))
    assert to_canonical(from_canonical(layers, numbering, n), numbering, n) == layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2,x", "neither 'auto' nor integers"),
        ("30,2,61", "must ascend"),
        ("2,2,61", "must ascend"),
        ("2,62", "does not exist"),
    ],
)
def test_bad_lists(text: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        parse_layers(text, KIMI)
