"""Memory that goes round: fresh pages cost the processor as much as what is put into them."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

Memory = npt.NDArray[np.uint8]
_MOST_TIMES = 4
"""What is lent has at most so many times the bytes that are asked for, rounded up."""


class LentMemory:
    """Lends pieces of memory of any size; what comes back is lent again.

    Sizes are rounded up to powers of two, so that a piece fits more than one sample; what nobody
    has written to yet takes no memory. Any thread may call any method.
    """

    def __init__(self, spare_bytes: int) -> None:
        """Allocate nothing yet; at most `spare_bytes` are kept while nobody has them."""
        self._spare_bytes = spare_bytes
        self._spare: list[Memory] = []  # the smallest first
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Memory:
        """`[nbytes or more]` uint8 that nobody else has; it holds what its last use left there."""
        size = 1 << max(nbytes - 1, 0).bit_length()
        with self._lock:
            at = bisect_left(self._spare, size, key=len)
            if at < len(self._spare) and len(self._spare[at]) <= _MOST_TIMES * size:
                return self._spare.pop(at)
        return np.empty(size, np.uint8)

    def give_back(self, memory: Memory) -> None:
        """End a loan: no view of it may be used from now on. The smallest spare ones go first."""
        with self._lock:
            insort(self._spare, memory, key=len)
            left = sum(map(len, self._spare))
            while left > self._spare_bytes:
                left -= len(self._spare.pop(0))
