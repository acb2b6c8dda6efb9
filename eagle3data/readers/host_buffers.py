"""Batch buffers that are used again once nobody sees them any more."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, eq=False)
class _Memory:
    """One buffer's bytes, and the device's work that must have passed before they are reused."""

    tensor: torch.Tensor
    passed: torch.cuda.Event | None = None


class HostBuffers:
    """Equal arrays in host memory, page-locked where there is a GPU.

    Fresh pages cost a fault each, and page-locking costs more, so memory goes round. An array that
    `take` gave is lent: its memory comes back when the last view of it is gone, of numpy or of
    torch, held by whomever. So what a consumer keeps stays right, and costs memory of its own.

    Attributes:
        made: buffers allocated so far.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """Allocate nothing yet."""
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._pin = torch.cuda.is_available()
        # Its operations are atomic: memory comes back in whatever thread drops the last view.
        self._free: deque[_Memory] = deque()
        self.made = 0

    @property
    def nbytes(self) -> int:
        """Of one buffer."""
        return prod(self._shape) * self._dtype.itemsize

    def take(self) -> npt.NDArray[Any]:
        """An array nobody else sees; what it holds is left over from its last use."""
        try:
            memory = self._free.popleft()
        except IndexError:
            memory = _Memory(torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=self._pin))
            self.made += 1
        if memory.passed is not None:
            memory.passed.synchronize()
        lent: npt.NDArray[Any] = np.ndarray(self._shape, self._dtype, memory.tensor.numpy().data)
        weakref.finalize(lent, _give_back, self._free, memory.tensor).atexit = False
        return lent


def _give_back(free: deque[_Memory], tensor: torch.Tensor) -> None:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        free.append(_Memory(tensor))
        return
    # Who dropped it may have begun a copy of it to the device a moment ago, on this stream.
    passed = torch.cuda.Event()  # type: ignore[no-untyped-call]
    passed.record()
    free.append(_Memory(tensor, passed))
