"""Batches copied to a device while the one before is used there.

Each copy has its device to itself on a stream of its own, so it runs beside the consumer's
kernels. The order of things is kept by three events a batch: the consumer's stream goes on when
the copy has passed; the host's memory is filled again when the copy has passed; and the batch
after the next is copied when the consumer's work on this one has passed, so that a consumer that
only queues kernels takes no more device memory than one that waits for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch

from eagle3data.readers.batch import Batch
from eagle3data.readers.filling import Filling
from eagle3data.readers.host_buffers import HostBuffers, Passing
from eagle3data.schema.errors import CorruptionError, InputError

_HANDED_OVER = 2
"""Batches that the consumer's stream may still be at work on when another copy begins."""


class Handed(Passing, Protocol):
    """A batch that was handed over; it has passed with the consumer's work on it."""

    @property
    def stalled(self) -> float:
        """Seconds that the consumer's stream stood still for the copy; known once it passed."""


class Device(Protocol):
    """Where batches are copied to. `CudaDevice` is the one; tests imitate it."""

    def begin(self, batch: Batch) -> tuple[Batch, Passing]:
        """Begin a copy; what it gives means nothing before the work has passed."""

    def hand_over(self, batch: Batch, copied: Passing) -> Callable[[], Handed]:
        """Let the consumer's stream go on after the copy.

        Returns:
            What to call when the consumer has queued its work on the batch.
        """

    def finish(self) -> None:
        """Wait until no copy runs any more."""


class CudaDevice:
    """A CUDA device, with a stream for copies."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream.

        Args:
            device: of type cuda; the current one where it has no number.
        """
        number = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", number)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def begin(self, batch: Batch) -> tuple[Batch, Passing]:
        with torch.cuda.stream(self._stream):
            moved = batch.to(self.device, non_blocking=True)
            return moved, self._event(self._stream)

    def hand_over(self, batch: Batch, copied: Any) -> Callable[[], Handed]:
        consumer = torch.cuda.current_stream(self.device)
        reached = self._event(consumer, timing=True)
        consumer.wait_event(copied)
        went_on = self._event(consumer, timing=True)
        for tensor in tensors(batch):
            # Its memory came from the copies' stream: the allocator must know who else reads it.
            tensor.record_stream(consumer)
        return lambda: _CudaHanded(reached, went_on, self._event(consumer))

    def finish(self) -> None:
        self._stream.synchronize()

    def _event(self, stream: torch.cuda.Stream, *, timing: bool = False) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event


@dataclass(frozen=True)
class _CudaHanded:
    reached: torch.cuda.Event
    went_on: torch.cuda.Event
    used: torch.cuda.Event

    def synchronize(self) -> None:
        self.used.synchronize()

    @property
    def stalled(self) -> float:
        return float(self.reached.elapsed_time(self.went_on)) / 1e3


class Delivery(Protocol):
    """How filled batches come to the consumer.

    Attributes:
        begun: batches taken up and not handed over.
        braked: seconds waited, so far, for the consumer's own work; not for data.
        stalled: seconds that the consumer's stream stood still for copies, so far.
    """

    @property
    def begun(self) -> int: ...
    @property
    def braked(self) -> float: ...
    @property
    def stalled(self) -> float: ...

    def next(self, filled: deque[Filling], skip: Callable[[int, CorruptionError], None]) -> Batch:
        """The next batch; waits for it.

        Args:
            filled: batches to come, in order; those that are taken up are taken from it.
            skip: as in `Filling.batch`, called when a batch is handed over.
        """

    def close(self) -> None:
        """Nothing of it goes on afterwards."""


class HostDelivery:
    """Batches as they are, in the host's memory."""

    begun = 0
    braked = stalled = 0.0

    def next(self, filled: deque[Filling], skip: Callable[[int, CorruptionError], None]) -> Batch:
        return filled.popleft().batch(skip)

    def close(self) -> None:
        return


class DeviceDelivery:
    """Filled batches in, batches on the device out, each copied while the one before is used.

    Attributes are those of `Delivery`.
    """

    def __init__(self, device: Device, buffers: HostBuffers) -> None:
        """Copy nothing yet.

        Args:
            device: where to.
            buffers: whose arrays the batches are made of.
        """
        self._device, self._buffers = device, buffers
        self._begun: deque[_Begun] = deque()
        self._used: deque[Handed] = deque()
        self._in_use: Callable[[], Handed] | None = None
        self.braked = self.stalled = 0.0

    @property
    def begun(self) -> int:
        return len(self._begun)

    def next(self, filled: deque[Filling], skip: Callable[[int, CorruptionError], None]) -> Batch:
        """The next batch; the copy of the one after it is begun if it is filled by now."""
        if self._in_use is not None:
            self._used.append(self._in_use())
            self._in_use = None
        self._brake()
        if not self._begun:
            self._begin(filled.popleft())
        handed = self._begun.popleft()
        if filled and filled[0].is_done:
            self._begin(filled.popleft())
        for position, error in handed.left_out:
            skip(position, error)
        self._in_use = self._device.hand_over(handed.batch, handed.copied)
        return handed.batch

    def close(self) -> None:
        """Wait for copies that run: the arrays that they read may be gone afterwards."""
        self._device.finish()
        self._begun.clear()

    def _brake(self) -> None:
        while len(self._used) >= _HANDED_OVER:
            began = time.perf_counter()
            used = self._used.popleft()
            used.synchronize()
            self.braked += time.perf_counter() - began
            self.stalled += used.stalled

    def _begin(self, filling: Filling) -> None:
        left_out: list[tuple[int, CorruptionError]] = []
        batch = filling.batch(lambda position, error: left_out.append((position, error)))
        moved, copied = self._device.begin(batch)
        self._buffers.copying(batch.hidden_states, copied)
        self._begun.append(_Begun(moved, copied, left_out))


@dataclass(frozen=True)
class _Begun:
    batch: Batch
    copied: Passing
    left_out: list[tuple[int, CorruptionError]]


def tensors(batch: Batch) -> list[torch.Tensor]:
    """Every tensor of a batch."""
    values = (getattr(batch, one.name) for one in fields(batch))
    return [value for value in values if isinstance(value, torch.Tensor)]


def device_of(device: torch.device | str | None) -> torch.device | None:
    """The device that a loader was given.

    Raises:
        InputError: neither a CPU nor a CUDA device that is there.
    """
    if device is None:
        return None
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device is {device!r}: {str(error).splitlines()[0]}") from None
    if chosen.type not in {"cpu", "cuda"}:
        raise InputError(f"device is {device!r}; expected cpu, cuda or cuda:N.")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device is {device!r}, but torch sees {torch.cuda.device_count()} GPUs here."
        )
    return chosen
