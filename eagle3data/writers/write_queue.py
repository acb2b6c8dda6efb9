"""Work for one background thread, bounded by the bytes that wait for it.

An extractor hands its samples over and goes on; while the disk keeps up it never waits, and when
the disk does not it is slowed to the disk's speed instead of filling the memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class WriteQueue:
    """Runs callables in order in a thread; the first error stops it and is raised to the caller.

    Attributes:
        waited: how often `submit` had to wait for room.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start the thread.

        Args:
            max_bytes: bytes that may wait; one item above it is let in when nothing else waits.
        """
        self._max_bytes = max_bytes
        self._work: deque[tuple[Callable[[], Any], int]] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self.waited = 0
        self._thread = threading.Thread(target=self._run, name="eagle3data-queue", daemon=True)
        self._thread.start()

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
            self._work.append((work, nbytes))
            self._bytes += nbytes
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until everything handed over is done.

        Raises:
            Exception: whatever the work raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._work or self._error)
            self._raise_error()

    def close(self) -> None:
        """End the thread; work that has not begun is dropped. Call `drain` first to keep it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _is_full(self, nbytes: int) -> bool:
        return self._bytes > 0 and self._bytes + nbytes > self._max_bytes

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or self._closed)
                if self._closed:
                    return
                work, nbytes = self._work[0]
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again where the caller is
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                # Only now: what is being written counts too.
                self._work.popleft()
                self._bytes -= nbytes
                self._changed.notify_all()
