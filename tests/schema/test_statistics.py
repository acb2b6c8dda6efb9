"""What a device finds of each row is what the writer finds in the bytes."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3data.schema.sample import as_float32
from eagle3data.schema.statistics import layer_statistics, statistics_of_rows


@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
def test_statistics_of_rows_are_those_of_the_states(dtype: type) -> None:
    values = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32) * 30
    values[7] = 0
    states = values.astype(np.float16)
    if dtype is np.uint16:
        states = (values.view(np.uint32) >> 16).astype(np.uint16)
    stored = as_float32(states)
    norms, largest = np.linalg.norm(stored, axis=1), np.abs(stored).max(axis=1)
    found, expected = statistics_of_rows(norms, largest, 64), layer_statistics(states)
    assert found is not None
    assert found.difference(expected) is None
    assert (found.n_zero_rows, found.n_nan, found.n_inf) == (1, 0, 0)
    assert found.absmax == expected.absmax


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_left_to_the_writer(value: float) -> None:
    norms = np.asarray([1.0, value], np.float32)
    assert statistics_of_rows(norms, norms, 64) is None
