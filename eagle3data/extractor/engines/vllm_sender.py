"""Finished requests' states, from the pages of vLLM's cache to the clients that asked."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from eagle3data.extractor.engines.channel import Consumer, Region, SampleLayout, StateServer
from eagle3data.schema.errors import EngineError

_PIECE_BYTES = 256 << 20
"""States gathered on the GPU at once: what vLLM leaves free there is not much."""
_IDLE_SECONDS = 0.002
_STORAGE = {"float16": torch.float16, "bfloat16": torch.bfloat16}
TakeRows = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Rows `[n, L, H]` of a cache, by their slots `[n]`; how a cache is laid out is the engine's."""


@dataclass(frozen=True, kw_only=True)
class FinishedRequest:
    """A request whose states lie complete in the cache.

    Attributes:
        req_id: vLLM's own.
        request: the client's name of it.
        consumer: the client.
        tokens: T.
        tokens_crc32c: of the token ids that were run.
        block_ids: pages of the hidden-state cache that hold its rows, in order.
    """

    req_id: str
    request: str
    consumer: str
    tokens: int
    tokens_crc32c: int
    block_ids: list[int]


class StateSender:
    """Copies finished requests' states to their clients.

    The copies are issued in the engine's own thread, where they cost microseconds: another one
    would wait for Python's lock at each of its calls for as long as the engine has something to
    do. Only what waits (for the device, for a socket) is done in a thread, one a client.
    """

    def __init__(
        self,
        cache: torch.Tensor,
        block_size: int,
        take_rows: TakeRows,
        settings: dict[str, Any],
        facts: dict[str, Any],
    ) -> None:
        """Open the channel.

        Args:
            cache: of the hidden states, in pages.
            block_size: tokens of a page.
            take_rows: how rows are taken from the cache.
            settings: the connector's: `address`, `key`.
            facts: told to each client.
        """
        self._pages = _Pages(
            cache, block_size, take_rows, len(facts["layers"]), int(facts["hidden_size"])
        )
        self._behind: torch.cuda.Event | None = None
        self._lanes: dict[str, _Lane] = {}
        self._changed = threading.Condition()
        self._open = 0
        self._copied: set[str] = set()
        self._server = StateServer(
            settings["address"], bytes.fromhex(settings["key"]), facts, self._welcome, self._part
        )

    def step_begins(self) -> None:
        """Remember how far the device's work goes: what has finished by now lies in it.

        Copies that waited for the whole step, which may be computed already, would come a step
        late, and the clients' memory would be taken for as long.
        """
        self._behind = self._pages.event()

    def begin(self, finished: list[FinishedRequest]) -> None:
        """Issue the copies of what has finished, as far as there is room for them."""
        behind, self._behind = self._behind or self._pages.event(), None
        with self._changed:
            self._open += len(finished)
            lanes = dict(self._lanes)
        for request in finished:
            lane = lanes.get(request.consumer)
            if lane is None:
                self._done(request)  # its client has gone
            else:
                lane.waiting.append(request)
        for lane in lanes.values():
            lane.advance(behind)

    def wait_for_copy(self) -> None:
        """Let an engine that has nothing else to do not turn in circles."""
        with self._changed:
            if self._open and not self._copied:
                self._changed.wait(_IDLE_SECONDS)

    def copied(self) -> set[str]:
        """Requests whose pages are not needed any more, each told once."""
        with self._changed:
            copied, self._copied = self._copied, set()
        return copied

    def _welcome(self, consumer: Consumer) -> None:
        lane = _Lane(consumer, self._pages, self._done)
        with self._changed:
            self._lanes[consumer.name] = lane

    def _part(self, consumer: Consumer) -> None:
        """What is asked for from now on is nobody's; what was asked before is let go."""
        with self._changed:
            lane = self._lanes.pop(consumer.name)
        lane.end()

    def _done(self, request: FinishedRequest) -> None:
        with self._changed:
            self._open -= 1
            self._copied.add(request.req_id)
            self._changed.notify_all()


class _Lane:
    """One client's share of the work.

    Attributes:
        waiting: requests for whose states there was no room yet; the engine's thread's own.
    """

    def __init__(
        self, consumer: Consumer, pages: _Pages, done: Callable[[FinishedRequest], None]
    ) -> None:
        self.waiting: deque[FinishedRequest] = deque()
        self._consumer, self._pages, self._done = consumer, pages, done
        self._memory = torch.frombuffer(consumer.memory, dtype=torch.uint8)
        self._dtype = _STORAGE[consumer.dtype]
        self._stream = pages.stream()
        if self._stream is not None:
            _pin(self._memory, pages.device)
        self._issued: queue.SimpleQueue[_Issued | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        threading.Thread(target=self._deliver, name="eagle3data-states", daemon=True).start()

    def advance(self, behind: torch.cuda.Event | None) -> None:
        """Issue copies, oldest first, until the client's memory is full.

        Args:
            behind: work of the device that comes before them.
        """
        with self._lock:
            while self.waiting:
                request = self.waiting[0]
                if self._consumer.is_gone:
                    self._done(self.waiting.popleft())
                    continue
                try:
                    region = self._consumer.reserve(self._pages.layout(request).nbytes)
                    if region is None:
                        return
                    place = self._pages.place(request, region, self._memory, self._dtype)
                    event = self._pages.copy(request, place, self._stream, behind)
                    self._issued.put(_Issued(request, region, event))
                except (RuntimeError, EngineError) as error:
                    self._consumer.fail(f"request {request.request}: {error}")
                    self._done(request)
                self.waiting.popleft()

    def end(self) -> None:
        """The client has gone: nothing of it is kept."""
        self.advance(None)
        self._issued.put(None)

    def _deliver(self) -> None:
        """Tell the client of each copy that the device has made, until the client has gone."""
        while (issued := self._issued.get()) is not None:
            if issued.event is not None:
                issued.event.synchronize()
            header = {
                "request": issued.request.request,
                "tokens": issued.request.tokens,
                "tokens_crc32c": issued.request.tokens_crc32c,
            }
            self._consumer.deliver(issued.region, header)
            self._done(issued.request)
        if self._stream is not None:
            _unpin(self._memory)


@dataclass(frozen=True)
class _Issued:
    request: FinishedRequest
    region: Region
    event: torch.cuda.Event | None


@dataclass(frozen=True)
class _Pages:
    """The hidden states' cache, and how a request's rows are taken out of it."""

    cache: torch.Tensor
    block_size: int
    take_rows: TakeRows
    layers: int
    hidden_size: int

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.cache.device

    def stream(self) -> torch.cuda.Stream | None:
        """A stream beside the engine's own; None without CUDA."""
        if not self.cache.is_cuda:
            return None
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def layout(self, request: FinishedRequest) -> SampleLayout:
        """How a request's sample lies in a client's memory."""
        return SampleLayout(self.layers, request.tokens, self.hidden_size)

    def event(self) -> torch.cuda.Event | None:
        """Reached when the device has done all that it was given so far; None without CUDA."""
        if not self.cache.is_cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def place(
        self, request: FinishedRequest, region: Region, memory: torch.Tensor, dtype: torch.dtype
    ) -> _Target:
        """Where a request's sample goes in its client's memory."""
        layout = self.layout(request)
        piece = memory[region.offset : region.offset + layout.nbytes]
        states = piece[: layout.values * 2].view(dtype).view(layout.shape)
        rows = piece[layout.rows_offset :].view(torch.float32).view(2, *layout.shape[:2])
        return _Target(states, rows)

    def copy(
        self,
        request: FinishedRequest,
        target: _Target,
        stream: torch.cuda.Stream | None,
        behind: torch.cuda.Event | None,
    ) -> torch.cuda.Event | None:
        """Begin to copy; the event is reached when it is done, at once without CUDA."""
        if stream is None or behind is None:
            self._gather(request, target)
            return None
        stream.wait_event(behind)
        with torch.cuda.stream(stream):
            self._gather(request, target)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return event

    def _gather(self, request: FinishedRequest, target: _Target) -> None:
        """Take the rows from their pages, piece by piece, each layer's to its place."""
        row_bytes = self.layers * self.hidden_size * self.cache.element_size()
        piece = max(self.block_size, _PIECE_BYTES // row_bytes)
        slots = self._slots(request)
        for begin in range(0, request.tokens, piece):
            some = slots[begin : begin + piece]
            rows = self.take_rows(self.cache, some, len(some))
            layers = rows.transpose(0, 1).to(target.states.dtype).contiguous()
            place = slice(begin, begin + len(some))
            for order, of_rows in zip((2, torch.inf), target.rows, strict=True):
                found = torch.linalg.vector_norm(layers, order, dim=-1, dtype=torch.float32)
                _put(found, of_rows[:, place])
            _put(layers, target.states[:, place])

    def _slots(self, request: FinishedRequest) -> torch.Tensor:
        """`[T]` where its rows lie in the cache."""
        held = len(request.block_ids) * self.block_size
        if held < request.tokens:
            raise EngineError(f"{held} rows of states for {request.tokens} tokens")
        # Page-locked: from other memory the engine's thread would wait here for the whole step.
        blocks = torch.tensor(request.block_ids, dtype=torch.long, pin_memory=self.cache.is_cuda)
        blocks = blocks.to(self.device, non_blocking=True)
        offsets = torch.arange(self.block_size, dtype=torch.long, device=self.device)
        return (blocks[:, None] * self.block_size + offsets).flatten()[: request.tokens]


def _put(layers: torch.Tensor, place: torch.Tensor) -> None:
    """Copy to the host, in as few pieces as lie together there: strided ones go by a detour."""
    if place.is_contiguous():
        place.copy_(layers, non_blocking=True)
        return
    for one, its_place in zip(layers, place, strict=True):
        its_place.copy_(one, non_blocking=True)


@dataclass(frozen=True)
class _Target:
    """Where a sample goes: `[L, T, H]` states, and `[2, L, T]` norms and largest magnitudes."""

    states: torch.Tensor
    rows: torch.Tensor


def _pin(memory: torch.Tensor, device: torch.device) -> None:
    """Make the GPU write into it at full speed, without a stop at a buffer of the driver's."""
    with torch.cuda.device(device):
        error = torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]
            memory.data_ptr(), memory.numel() * memory.element_size(), 0
        )
    if int(error) != 0:
        raise EngineError(f"the buffer of states can't be pinned (CUDA error {int(error)})")


def _unpin(memory: torch.Tensor) -> None:
    """Undo `_pin`, without which the pages of a client that has gone would stay."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
