"""How a check says how far it is, without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Stage = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]
"""`(description, total, unit)` to a context that yields a function to call with work done."""


def silent(_: str, __: int, ___: str) -> AbstractContextManager[Callable[[int], None]]:
    """A stage that shows nothing."""
    return nullcontext(lambda _: None)


def whole_units(advance: Callable[[int], None], unit: int) -> Callable[[int], None]:
    """Count in ones what is shown in units, begun ones counted."""
    done = shown = 0

    def count(n: int) -> None:
        nonlocal done, shown
        done += n
        now = -(-done // unit)
        advance(now - shown)
        shown = now

    return count
