"""A device that does everything as late as it may: what is not waited for is seen undone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from eagle3data.readers.batch import Batch
from eagle3data.readers.device_copies import tensors
from eagle3data.readers.host_buffers import Passing

POISON = 77


class Copy:
    """A copy that runs when somebody waits for it, and reads its source only then.

    Of the host's batch only addresses are kept, as a device does: memory that is filled again too
    early is copied as it is by then.
    """

    def __init__(self, source: Batch, target: Batch) -> None:
        self._pairs = list(zip(map(_unheld, tensors(source)), tensors(target), strict=True))
        self.passed = False

    def synchronize(self) -> None:
        if not self.passed:
            self.passed = True
            for read, target in self._pairs:
                target.copy_(read())


def _unheld(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    if tensor.dim() < 3:  # torch looks after small ones, and keeps them while they are copied
        return lambda: tensor
    shape, dtype, address = tensor.shape, tensor.dtype, tensor.data_ptr()

    def read() -> torch.Tensor:
        size = shape.numel() * dtype.itemsize
        memory = (ctypes.c_uint8 * size).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    return read


class ImitatedDevice:
    """As `Device`, with one stream for the consumer.

    Attributes:
        most_unpassed: batches begun whose work had not passed, at most.
    """

    def __init__(self) -> None:
        self._queue: list[Callable[[], Any]] = []
        self._done = 0
        self.copies: list[Copy] = []
        self.used: list[Used] = []
        self.most_unpassed = 0

    def begin(self, batch: Batch) -> tuple[Batch, Passing]:
        made: dict[str, Any] = {
            name: torch.full_like(value, POISON, memory_format=torch.contiguous_format)
            for name, value in vars(batch).items()
            if isinstance(value, torch.Tensor)
        }
        moved = replace(batch, **made)
        self.copies.append(Copy(batch, moved))
        passed = sum(used.passed for used in self.used)
        self.most_unpassed = max(self.most_unpassed, len(self.copies) - passed)
        return moved, self.copies[-1]

    def hand_over(self, batch: Batch, copied: Passing) -> Callable[[], Used]:
        self.launch(copied.synchronize)
        return self._mark

    def _mark(self) -> Used:
        self.used.append(Used(self, len(self._queue)))
        return self.used[-1]

    def launch(self, kernel: Callable[[], Any]) -> None:
        """Have the consumer's stream run this some time."""
        self._queue.append(kernel)

    def run(self, until: int | None = None) -> None:
        """Run what is queued, in order."""
        until = len(self._queue) if until is None else until
        while self._done < until:
            self._queue[self._done]()
            self._done += 1

    def has_run(self, until: int) -> bool:
        return self._done >= until

    def finish(self) -> None:
        for copy in self.copies:
            copy.synchronize()


@dataclass(frozen=True)
class Used:
    """The consumer's work up to a moment."""

    device: ImitatedDevice
    until: int
    stalled: float = 0.25

    def synchronize(self) -> None:
        self.device.run(self.until)

    @property
    def passed(self) -> bool:
        return self.device.has_run(self.until)
