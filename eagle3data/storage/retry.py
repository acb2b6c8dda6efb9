"""Trying again what may pass: bounded, with exponential pauses and full jitter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

ATTEMPTS = 8
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 20.0
"""Seconds. Eight attempts wait 6 s on average and 13 s at most."""

Result = TypeVar("Result")


def with_retries(
    action: Callable[[], Result],
    *,
    errors: tuple[type[Exception], ...],
    is_transient: Callable[[Exception], bool],
) -> Result:
    """What `action` returns, tried up to `ATTEMPTS` times.

    Args:
        action: done again from its beginning; must be safe to do twice.
        errors: what it may raise because a store, or the way to it, failed.
        is_transient: whether one of those may pass. Others are raised at once.

    Raises:
        The last error, unchanged.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return action()
        except errors as error:
            if not is_transient(error):
                raise
        # Full jitter: clients that failed together don't come back together.
        time.sleep(random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt)))  # noqa: S311
    return action()
