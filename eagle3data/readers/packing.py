"""Samples into batches of a token budget: first-fit decreasing in a look-ahead window.

The list of packs is global: it knows no ranks, so a run can go on with another world size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import InputError

PACKING_VERSION = 1
"""Part of a loader's state: a change of the algorithm makes old positions meaningless."""

WINDOW_PACKS = 32
"""Look-ahead in budgets: wide enough to fill packs well, narrow enough to keep the shuffle."""


class PackPlan:
    """An epoch's packs, made as far as they are asked for: the first of a million rows is there at
    once."""

    def __init__(
        self, order: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], token_budget: int
    ) -> None:
        """Cut an order into packs of at most `token_budget` tokens; every sample exactly once.

        Samples are taken in order until the window holds `WINDOW_PACKS` budgets, packed longest
        first into the first pack with room, and the packs that came out less full than the
        window's median wait for the next window's samples.

        Args:
            order: `[n]` positions in the index.
            lengths: `[samples]` tokens of every sample in the index.
            token_budget: tokens of a pack.

        Raises:
            InputError: a sample is longer than the budget.
        """
        too_long = order[lengths[order] > token_budget]
        if len(too_long):
            worst = int(lengths[too_long].max())
            raise InputError(
                f"{len(too_long)} samples are longer than the token budget {token_budget} (the "
                f"longest has {worst} tokens). Raise token_budget to {worst}, or leave them out "
                "with where=."
            )
        self._packs: list[list[int]] = []
        self._rest = _packs(order, lengths, token_budget)

    def get(self, place: int) -> list[int] | None:
        """Positions of a pack, in order of the permutation; None past the last one."""
        while place >= len(self._packs):
            more = next(self._rest, None)
            if more is None:
                return None
            self._packs += more
        return self._packs[place]

    def __len__(self) -> int:
        """Packs of the epoch; makes the rest of them."""
        for more in self._rest:
            self._packs += more
        return len(self._packs)

    def __iter__(self) -> Iterator[list[int]]:
        places = itertools.count()
        return iter(lambda: self.get(next(places)), None)


def _packs(
    order: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], token_budget: int
) -> Iterator[list[list[int]]]:
    """The packs of one window after another."""
    rank_in_order = np.empty(len(lengths), dtype=np.int64)
    rank_in_order[order] = np.arange(len(order))

    def in_order(packs: list[list[int]]) -> list[list[int]]:
        return [sorted(members, key=lambda one: int(rank_in_order[one])) for members in packs]

    window: list[int] = []
    tokens = 0
    for position, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        window.append(position)
        tokens += length
        if tokens >= WINDOW_PACKS * token_budget:
            full, window = _split_full(
                _first_fit_decreasing(window, lengths, token_budget), lengths
            )
            yield in_order(full)
            tokens = int(lengths[window].sum())
    yield in_order(_first_fit_decreasing(window, lengths, token_budget))


def _first_fit_decreasing(
    window: Sequence[int], lengths: npt.NDArray[np.int32], token_budget: int
) -> list[list[int]]:
    packs: list[list[int]] = []
    room: list[int] = []
    for position in sorted(window, key=lambda position: (-int(lengths[position]), position)):
        length = int(lengths[position])
        target = next((number for number, left in enumerate(room) if left >= length), None)
        if target is None:
            packs.append([position])
            room.append(token_budget - length)
        else:
            packs[target].append(position)
            room[target] -= length
    return packs


def _split_full(
    packs: list[list[int]], lengths: npt.NDArray[np.int32]
) -> tuple[list[list[int]], list[int]]:
    fill = [int(lengths[members].sum()) for members in packs]
    median = sorted(fill)[len(fill) // 2]
    full = [members for members, tokens in zip(packs, fill, strict=True) if tokens >= median]
    rest = [members for members, tokens in zip(packs, fill, strict=True) if tokens < median]
    return full, [position for members in rest for position in members]
