"""Memory that goes round is never lent twice, and not kept without bound."""

from __future__ import annotations

from eagle3data.extractor.engines.lent_memory import LentMemory


def test_what_comes_back_is_lent_again_and_only_then() -> None:
    memory = LentMemory(1 << 20)
    first, second = memory.take(1000), memory.take(1000)
    first[:], second[:] = 1, 2
    assert (first == 1).all()
    memory.give_back(first)
    third = memory.take(900)
    assert third is first
    assert (second == 2).all()


def test_a_piece_is_large_enough_and_not_far_too_large() -> None:
    memory = LentMemory(1 << 20)
    large = memory.take(100_000)
    memory.give_back(large)
    small = memory.take(10)
    assert small is not large
    assert len(small) >= 10
    assert memory.take(100_001) is large  # rounded up, it has room for both
    assert len(memory.take(200_000)) >= 200_000


def test_spare_memory_is_bounded_and_the_largest_stays() -> None:
    memory = LentMemory(3 << 10)
    pieces = [memory.take(1 << 10), memory.take(2 << 10), memory.take(1 << 10)]
    for piece in pieces:
        memory.give_back(piece)
    assert memory.take(2 << 10) is pieces[1]
    kept = [memory.take(1 << 10), memory.take(1 << 10)]
    assert sum(any(one is piece for piece in pieces) for one in kept) == 1
