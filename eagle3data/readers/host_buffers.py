"""Batch buffers that are used again once nobody sees them any more."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


class Passing(Protocol):
    """Work of a device that ends some time, such as a `torch.cuda.Event`."""

    def synchronize(self) -> None:
        """Wait until it has ended."""


@dataclass(eq=False)
class _Memory:
    """One buffer's bytes, and the device's work that must have passed before they are reused."""

    tensor: torch.Tensor
    passing: list[Passing] = field(default_factory=list)


class HostBuffers:
    """Equal arrays in host memory, page-locked where there is a GPU.

    Fresh pages cost a fault each, and page-locking costs more, so memory goes round. An array that
    `take` gave is lent: its memory comes back when the last view of it is gone, of numpy or of
    torch, held by whomever, and is lent again when the copies of it that `copying` was told of
    have passed. So what a consumer keeps stays right, and costs memory of its own.

    Attributes:
        pinned: whether the memory is page-locked.
        made: buffers allocated so far.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, *, pin: bool | None = None
    ) -> None:
        """Allocate nothing yet.

        Args:
            shape: of an array.
            dtype: of an array.
            pin: page-lock the memory; by default where there is a GPU.
        """
        self._shape, self._dtype = shape, np.dtype(dtype)
        self.pinned = torch.cuda.is_available() if pin is None else pin
        # Its operations are atomic: memory comes back in whatever thread drops the last view.
        self._free: deque[_Memory] = deque()
        self._lent: dict[int, _Memory] = {}
        self.made = 0

    @property
    def nbytes(self) -> int:
        """Of one array."""
        return prod(self._shape) * self._dtype.itemsize

    @property
    def cost(self) -> int:
        """Bytes of memory that an array takes: torch may round page-locked ones up."""
        return 1 << (self.nbytes - 1).bit_length() if self.pinned and self.nbytes else self.nbytes

    def take(self) -> npt.NDArray[Any]:
        """An array nobody else sees; what it holds is left over from its last use."""
        try:
            memory = self._free.popleft()
        except IndexError:
            memory = _Memory(torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=self.pinned))
            self.made += 1
        while memory.passing:
            memory.passing.pop().synchronize()
        lent: npt.NDArray[Any] = np.ndarray(self._shape, self._dtype, memory.tensor.numpy().data)
        address = memory.tensor.data_ptr()
        self._lent[address] = memory
        weakref.finalize(lent, _give_back, self._lent, address, self._free.append).atexit = False
        return lent

    def copying(self, lent: torch.Tensor, work: Passing) -> None:
        """Tell of work of a device that reads an array which is still lent.

        Args:
            lent: the whole array, as a tensor that shares its memory.
            work: its memory is not lent again before this has passed.
        """
        self._lent[lent.data_ptr()].passing.append(work)

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """A small tensor beside an array, in memory of the same kind, which torch looks after."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self.pinned)


def _give_back(lent: dict[int, _Memory], address: int, give: Callable[[_Memory], object]) -> None:
    memory = lent.pop(address)
    if not memory.passing and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # Who dropped it may have begun a copy of it to the device a moment ago, on this stream.
        passed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        passed.record()
        memory.passing.append(passed)
    give(memory)
