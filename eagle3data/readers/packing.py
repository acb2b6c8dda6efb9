"""Samples into batches of a token budget: first-fit decreasing in a look-ahead window.

The list of packs is global: it knows no ranks, so a run can go on with another world size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import InputError

PACKING_VERSION = 1
"""Part of a loader's state: a change of the algorithm makes old positions meaningless."""

WINDOW_PACKS = 32
"""Look-ahead in budgets: wide enough to fill packs well, narrow enough to keep the shuffle."""


def pack(
    order: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], token_budget: int
) -> list[list[int]]:
    """Cut an order into packs of at most `token_budget` tokens; every sample exactly once.

    Samples are taken in order until the window holds `WINDOW_PACKS` budgets, packed longest
    first into the first pack with room, and the packs that came out less full than the
    window's median wait for the next window's samples.

    Args:
        order: `[n]` positions in the index.
        lengths: `[samples]` tokens of every sample in the index.
        token_budget: tokens of a pack.

    Returns:
        Packs of positions; within a pack, in order of the permutation.

    Raises:
        InputError: a sample is longer than the budget.
    """
    too_long = order[lengths[order] > token_budget]
    if len(too_long):
        worst = int(lengths[too_long].max())
        raise InputError(
            f"{len(too_long)} samples are longer than the token budget {token_budget} (the longest "
            f"has {worst} tokens). Raise token_budget to {worst}, or leave them out with where=."
        )
    rank_in_order = np.empty(len(lengths), dtype=np.int64)
    rank_in_order[order] = np.arange(len(order))
    packs: list[list[int]] = []
    window: list[int] = []
    tokens = 0
    for position in order.tolist():
        window.append(position)
        tokens += int(lengths[position])
        if tokens >= WINDOW_PACKS * token_budget:
            full, window = _split_full(
                _first_fit_decreasing(window, lengths, token_budget), lengths
            )
            packs += full
            tokens = int(lengths[window].sum())
    packs += _first_fit_decreasing(window, lengths, token_budget)
    return [sorted(members, key=lambda position: int(rank_in_order[position])) for members in packs]


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
