"""Work shared out to threads, of which nothing goes on once the caller has been told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any


def run_all(pool: ThreadPoolExecutor, works: Iterable[Callable[[], Any]]) -> None:
    """Run everything on the pool's threads and wait for it.

    Raises:
        Exception: the first that the work raised, in order; what had not begun is dropped, and
            what had is waited for, so nobody still writes into the caller's buffers.
    """
    futures = [pool.submit(work) for work in works]
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
