"""States copied block by block are what a cast of the whole gives, and so are their statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from eagle3data.schema.statistics import layer_statistics, rows_at_once
from eagle3data.writers.casting import cast_into, cast_states

WIDTH = 4096
ROWS = 2 * rows_at_once(WIDTH) + 3


@pytest.mark.parametrize("stored", [np.float16, np.uint16, np.float32])
@pytest.mark.parametrize("wanted", [np.float16, np.uint16])
def test_blocks_are_the_whole(stored: type, wanted: type) -> None:
    values = np.random.default_rng(0).standard_normal((ROWS, 3, WIDTH), np.float32)
    source = cast_states(values, np.dtype(stored))[:, 1]  # strided, as a slot among others
    whole = source if stored is wanted else cast_states(source, np.dtype(wanted))
    out: npt.NDArray[Any] = np.full((ROWS, WIDTH), 7, wanted)
    found = cast_into(source, out)
    np.testing.assert_array_equal(out, whole)
    assert found == layer_statistics(np.ascontiguousarray(whole))


def test_overflow_in_the_last_block_is_counted() -> None:
    source = np.ones((ROWS, WIDTH), np.float32)
    source[-1, -1] = 1e6
    found = cast_into(source, np.empty((ROWS, WIDTH), np.float16))
    assert (found.n_inf, found.n_nan, found.absmax) == (1, 0, 1.0)
