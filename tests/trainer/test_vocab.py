"""The vocabulary map's invariants, for any counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3data.schema.errors import InputError
from eagle3data.schema.index import INDEX_SCHEMA
from eagle3data.trainer.vocab import VocabularyMap, count_tokens


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_the_map_for_any_counts(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(counts)))
    found = VocabularyMap.most_frequent(np.array(counts, dtype=np.int64), size)
    ranked = sorted(range(len(counts)), key=lambda token: (-counts[token], token))
    assert found.draft_ids.tolist() == sorted(ranked[:size])
    assert np.flatnonzero(found.t2d).tolist() == (found.d2t + np.arange(size)).tolist()
    assert found.d2t.dtype == np.int64
    assert found.t2d.dtype == np.bool_
    assert len(found.t2d) == len(counts)


@pytest.mark.parametrize("size", [0, 6])
def test_a_size_that_cannot_be(size: int) -> None:
    with pytest.raises(InputError, match="draft_vocab_size"):
        VocabularyMap.most_frequent(np.ones(5, dtype=np.int64), size)


def test_d2t_must_hold_offsets() -> None:
    t2d = np.array([False, True, False, True])
    VocabularyMap(d2t=np.array([1, 2]), t2d=t2d)
    with pytest.raises(InputError, match="offsets"):
        VocabularyMap(d2t=np.array([1, 3]), t2d=t2d)


def test_only_loss_tokens_of_the_split_are_counted() -> None:
    import pyarrow as pa

    rows = [
        ([1, 2, 2, 3], [False, True, True, True], "train"),
        ([4, 4], [True, False], "train"),
        ([5, 5, 5], [True, True, True], "eval"),
    ]
    table = pa.table(
        {
            "input_ids": pa.array([r[0] for r in rows], INDEX_SCHEMA.field("input_ids").type),
            "loss_mask": pa.array([r[1] for r in rows], INDEX_SCHEMA.field("loss_mask").type),
            "split": pa.array([r[2] for r in rows]),
        }
    )
    assert count_tokens(table, 8, "train").tolist() == [0, 0, 2, 1, 1, 0, 0, 0]
    assert count_tokens(table, 8).tolist() == [0, 0, 2, 1, 1, 3, 0, 0]
    assert count_tokens(table[1:2], 8).tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
