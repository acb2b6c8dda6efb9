"""Work for background threads, bounded by the bytes that wait for them.

An extractor hands its samples over and goes on; while the disk keeps up it never waits, and when
the disk does not it is slowed to the disk's speed instead of filling the memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class WriteQueue:
    """Runs callables in threads; the first error stops it and is raised to the caller.

    One thread does the work in the order it came; several do it beside each other.

    Attributes:
        waited: how often `submit` had to wait for room.
    """

    def __init__(self, max_bytes: int, threads: int = 1) -> None:
        """Start the threads.

        Args:
            max_bytes: bytes that may wait; one item above it is let in when nothing else waits.
            threads: pieces of work that are done at once.
        """
        self._max_bytes = max_bytes
        self._work: deque[_Item] = deque()
        self._busy = 0
        self._bytes = 0
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self.waited = 0
        self._threads = [
            threading.Thread(target=self._run, name="eagle3data-queue", daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], Any], nbytes: int = 0) -> None:
        """Hand over work; waits while too many bytes are in the queue.

        Args:
            work: called in the thread.
            nbytes: memory that it keeps until it is done.

        Raises:
            Exception: whatever earlier work raised; this work is then not done.
        """
        with self._changed:
            if self._is_full(nbytes) and self._error is None:
                self.waited += 1
                self._changed.wait_for(lambda: not self._is_full(nbytes) or self._error)
            self._raise_error()
            self._work.append(_Item(work, nbytes))
            self._bytes += nbytes
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until everything handed over is done.

        Raises:
            Exception: whatever the work raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: not (self._work or self._busy) or self._error)
            self._raise_error()

    def close(self) -> None:
        """End the threads; work that has not begun is dropped. Call `drain` first to keep it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _is_full(self, nbytes: int) -> bool:
        return self._bytes > 0 and self._bytes + nbytes > self._max_bytes

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                item.work()
            except BaseException as error:  # noqa: BLE001 - raised again where the caller is
                self._error = self._error or error
            with self._changed:
                # Only now: what is being written counts too.
                self._bytes -= item.nbytes
                self._busy -= 1
                self._changed.notify_all()

    def _next(self) -> _Item | None:
        """The first piece of work; None when there is to be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._work or self._closed or self._error)
            if self._closed or self._error:
                return None
            self._busy += 1
            return self._work.popleft()


@dataclass(frozen=True)
class _Item:
    work: Callable[[], Any]
    nbytes: int
