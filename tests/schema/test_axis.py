"""Token axis: placement, choice of C and S, and the arithmetic people get wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3data.schema.axis import SizeArithmetic, TokenAxis, choose_axis
from eagle3data.schema.errors import InputError

KIMI_ROW = 7168 * 2
axes = st.builds(
    lambda power, chunks: TokenAxis(shard_tokens=chunks << power, chunk_tokens=1 << power),
    st.integers(0, 7),
    st.integers(1, 40),
)


@given(st.data(), axes)
def test_samples_stay_in_their_shard_and_never_share_a_chunk(
    data: st.DataObject, axis: TokenAxis
) -> None:
    lengths = data.draw(st.lists(st.integers(1, axis.shard_tokens), max_size=50))
    taken: set[tuple[int, int]] = set()
    for offset, length in zip(axis.place(lengths), lengths, strict=True):
        shard = axis.shard_of(offset)
        assert offset % axis.chunk_tokens == 0
        assert axis.shard_of(offset + length - 1) == shard
        chunks = axis.chunks_of(offset, length)
        assert 0 <= chunks.start < chunks.stop <= axis.chunks_per_shard
        mine = {(shard, chunk) for chunk in chunks}
        assert not taken & mine
        taken |= mine


def test_a_sample_longer_than_a_shard_is_refused() -> None:
    with pytest.raises(InputError, match="sample 1 has 65 tokens"):
        TokenAxis(shard_tokens=64, chunk_tokens=16).place([3, 65])


@pytest.mark.parametrize(("shard", "chunk"), [(100, 16), (64, 24), (8, 16)])
def test_impossible_axes(shard: int, chunk: int) -> None:
    with pytest.raises(InputError):
        TokenAxis(shard_tokens=shard, chunk_tokens=chunk)


def test_kimi_axis() -> None:
    axis = choose_axis([1730] * 10_000, KIMI_ROW)
    assert axis.chunk_tokens * KIMI_ROW <= 1 << 20
    assert 200e6 < axis.shard_tokens * KIMI_ROW <= 251e6
    unused = axis.aligned(1730) - 1730
    assert unused <= 0.03 * 1730


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200), st.sampled_from([1152, KIMI_ROW]))
def test_every_sample_fits_the_chosen_axis(lengths: list[int], row_bytes: int) -> None:
    axis = choose_axis(lengths, row_bytes)
    assert len(axis.place(lengths)) == len(lengths)


def test_kimi_needs_992_gb() -> None:
    sizes = SizeArithmetic(
        tokens=17_300_000, layers=4, hidden_size=7168, item_bytes=2, aligned_tokens=17_300_000
    )
    assert sizes.token_bytes == 57_344
    assert round(sizes.state_bytes / 1e9) == 992
    assert sizes.stored_bytes("none") > 828e9
    assert sizes.stored_bytes("pcodec") < 828e9
