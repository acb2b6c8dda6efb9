"""Samples into batches of a token budget: first-fit decreasing in a look-ahead window.

The list of packs is global: it knows no ranks, so a run can go on with another world size.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

PACKING_VERSION = 3
"""Part of a loader's state: a change of the algorithm makes old positions meaningless."""

WINDOW_PACKS = 32
"""Look-ahead in budgets: wide enough to fill packs well, narrow enough to keep the shuffle."""

_Item = tuple[int, int, int]
"""Minus its tokens, its place in the order, the document: sorts longest first."""


class PackPlan:
    """An epoch's packs, made as far as they are asked for: the first of a million rows is there at
    once.

    Documents are taken in order until the window holds `WINDOW_PACKS` budgets, packed longest
    first into the first pack with room, and the packs that came out less full than the window's
    median wait for what comes next. `close` packs what the window holds at the end.
    """

    def __init__(
        self, token_budget: int, keep: Callable[[list[list[int]]], None] | None = None
    ) -> None:
        """Without a document yet.

        Args:
            token_budget: tokens of a pack.
            keep: called with all packs once they are made.
        """
        self._budget = token_budget
        self._coming: deque[Iterator[_Item]] = deque()
        self._count = 0
        self._window: list[_Item] = []
        self._tokens = 0
        self._packs: list[list[int]] = []
        self._is_closed = False
        self._keep = keep

    @classmethod
    def whole(
        cls,
        order: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        token_budget: int,
        keep: Callable[[list[list[int]]], None] | None = None,
    ) -> PackPlan:
        """The plan of an order that is known to its end; arguments as of `add` and the class."""
        plan = cls(token_budget, keep)
        plan.add(order, lengths)
        plan.close()
        return plan

    @classmethod
    def made(cls, packs: list[list[int]]) -> PackPlan:
        """A plan whose packs are known."""
        plan = cls(0)
        plan.close()
        plan._packs = packs
        return plan

    def add(self, order: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]) -> None:
        """Say what comes next.

        Args:
            order: `[n]` numbers of documents; one may come more than once.
            lengths: `[n]` tokens of each, at most the budget.
        """
        places = range(self._count, self._count + len(order))
        self._count += len(order)
        self._coming.append(
            zip((-lengths.astype(np.int64)).tolist(), places, order.tolist(), strict=True)
        )

    def close(self) -> None:
        """Say that nothing comes any more."""
        self._is_closed = True

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes any more."""
        return self._is_closed

    def get(self, place: int) -> list[int] | None:
        """Documents of a pack, in the order given; None past the last one, or the last one yet."""
        while place >= len(self._packs) and self._make_more():
            pass
        return self._packs[place] if place < len(self._packs) else None

    def __len__(self) -> int:
        """Packs so far, which are all once the plan is closed; makes the rest of them."""
        while self._make_more():
            pass
        return len(self._packs)

    def __iter__(self) -> Iterator[list[int]]:
        places = itertools.count()
        return iter(lambda: self.get(next(places)), None)

    def _make_more(self) -> bool:
        """Pack one window; false where none is full and more may come, or all is packed."""
        enough = WINDOW_PACKS * self._budget
        while self._coming and self._tokens < enough:
            for item in self._coming[0]:
                self._window.append(item)
                self._tokens -= item[0]
                if self._tokens >= enough:
                    break
            else:
                self._coming.popleft()
        if self._is_closed and not self._window:
            if self._keep is not None:
                self._keep(self._packs)
                self._keep = None
            return False
        if self._tokens < enough and not self._is_closed:
            return False
        packs, fill = _first_fit_decreasing(self._window, self._budget)
        least = sorted(fill)[len(fill) // 2] if self._tokens >= enough else 0
        self._window = []
        self._tokens = 0
        done = []
        for members, tokens in zip(packs, fill, strict=True):
            if tokens >= least:
                done.append(sorted((place, document) for _, place, document in members))
            else:
                self._window += members
                self._tokens += tokens
        # They were begun longest first; as they stand in the order, no batch's place tells lengths.
        # Not so the last of all: the emptiest come in the last step, which is shared out.
        if least:
            done.sort()
        self._packs += [[document for _, document in members] for members in done]
        return True


def _first_fit_decreasing(
    window: Sequence[_Item], token_budget: int
) -> tuple[list[list[_Item]], list[int]]:
    """Packs, and the tokens of each."""
    packs: list[list[_Item]] = []
    room: list[int] = []
    items = sorted(window)
    shortest = -items[-1][0]
    first = 0  # packs before it have no room for the shortest
    for item in items:
        length = -item[0]
        for number in range(first, len(room)):
            if room[number] >= length:
                packs[number].append(item)
                room[number] -= length
                break
        else:
            packs.append([item])
            room.append(token_budget - length)
        while first < len(room) and room[first] < shortest:
            first += 1
    return packs, [token_budget - left for left in room]
