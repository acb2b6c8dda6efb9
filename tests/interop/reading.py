"""How the tests of this room read a source and look at what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data.interop.choice import open_source
from eagle3data.interop.source import SourceOptions, StateSource
from eagle3data.schema.errors import SampleError
from tests.interop.layouts import HIDDEN, PAD, Wanted


def opened(path: Path, *, hidden_size: int = HIDDEN, **options: Any) -> StateSource:
    """The source at a path, its layout found by itself unless it is named."""
    return open_source(
        SourceOptions(path=path, **{"pad_token_id": PAD, **options}), hidden_size=hidden_size
    )


def check_equal(source: StateSource, wanted: list[Wanted], slots: list[int]) -> None:
    """Every sample in order, its arrays equal to the bit."""
    entries = source.entries()
    assert len(entries) == len(wanted)
    for entry, one in zip(entries, wanted, strict=True):
        tokens = source.tokens(entry)
        assert tokens.input_ids.dtype == np.int32
        assert np.array_equal(tokens.input_ids, one.ids.numpy())
        assert tokens.loss_mask is not None
        assert tokens.loss_mask.dtype == np.uint8
        assert np.array_equal(tokens.loss_mask, one.mask.numpy())
        states = source.states(entry)
        assert len(states) == len(slots)
        for state, slot in zip(states, slots, strict=True):
            assert state.dtype == one.slot(slot).dtype
            assert np.array_equal(state, one.slot(slot))


def refusals(source: StateSource) -> dict[str, str]:
    """Place to kind of every sample that is refused; the rest can be read."""
    found, told = {}, []
    for entry in source.entries():
        try:
            source.tokens(entry)
            source.states(entry)
        except SampleError as error:
            found[error.sample_id] = error.kind
            told.append(str(error))
    assert set(found) <= {entry.place for entry in source.entries()}
    assert all("; expected " in text for text in told)
    return found


def refusal_of(source: StateSource, place: str) -> str:
    """What is said of one sample."""
    entry = next(entry for entry in source.entries() if entry.place == place)
    with pytest.raises(SampleError) as caught:
        source.tokens(entry)
    return str(caught.value)


def cut(path: Path, keep: float) -> None:
    """Truncate a file to a part of its length."""
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
