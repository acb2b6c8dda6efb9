"""What both ways of using vLLM share: requests drawn ahead, and joined with their states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from eagle3data.extractor.engines.base import Captured, CaptureSettings, Request
from eagle3data.extractor.engines.channel import Received, SampleLayout, StateClient
from eagle3data.extractor.engines.vllm_settings import PARAMS, Doorway
from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.errors import EngineError, InputError
from eagle3data.schema.statistics import LayerStatistics, statistics_of_rows

_BUFFER_BYTES = 2 << 30
_LARGE_MACHINE_BYTES = 64 << 30


@dataclass
class _Open:
    """A request on its way; complete once both halves are there."""

    request: Request
    witness: tuple[int, float] | None = None
    received: Received | None = None


class OpenRequests:
    """Joins each request's witness with its states, whichever comes first.

    Attributes:
        tokens: of the requests that are not complete.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        """Nothing is open yet; `layers` are the canonical ids of the slots, in order."""
        self._layers = list(layers)
        self._open: dict[str, _Open] = {}
        self._made = 0
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: Request) -> str:
        """A name for the request that no other has, not even the same one done again."""
        self._made += 1
        name = str(self._made)
        self._open[name] = _Open(request)
        self.tokens += len(request.input_ids)
        return name

    def answer(self, name: str, token: int, logprob: float) -> Captured | None:
        """The engine's own next token; what is complete by it."""
        self._open[name].witness = (token, logprob)
        return self._complete(name)

    def receive(self, received: Received) -> Captured | None:
        """The states; what is complete by them.

        Raises:
            EngineError: they are of other tokens than were asked for.
        """
        request = self._open[received.request].request
        expected = tokens_crc32c(request.input_ids)
        if received.tokens != len(request.input_ids) or received.tokens_crc32c != expected:
            raise EngineError(
                f"for the {len(request.input_ids)} tokens of sample {request.sample_id} the engine "
                f"returned the states of {received.tokens} other tokens. Nothing of it was "
                "written; please report this engine and model."
            )
        self._open[received.request].received = received
        return self._complete(received.request)

    def _complete(self, name: str) -> Captured | None:
        found = self._open[name]
        if found.witness is None or found.received is None:
            return None
        del self._open[name]
        self.tokens -= len(found.request.input_ids)
        received = found.received
        return Captured(
            request=found.request,
            hidden_states=dict(zip(self._layers, received.states, strict=True)),
            witness_token=found.witness[0],
            witness_logprob=found.witness[1],
            statistics=self._statistics(received),
            release=received.release,
        )

    def _statistics(self, received: Received) -> dict[int, LayerStatistics]:
        width = received.states.shape[-1]
        found = {
            layer: statistics_of_rows(norms, largest, width)
            for layer, norms, largest in zip(
                self._layers, received.norms, received.largest, strict=True
            )
        }
        return {layer: one for layer, one in found.items() if one is not None}


def run_ahead(
    groups: Iterable[Sequence[Request] | None],
    requests: OpenRequests,
    window: int,
    submit: Callable[[Request], None],
    step: Callable[[], Iterator[Captured]],
) -> Iterator[Captured]:
    """Keep an engine busy: requests are handed over ahead of what it has finished.

    Args:
        groups: as in `Engine.capture`.
        requests: that are open; `submit` adds to them, `step` completes them.
        window: tokens that are kept open.
        submit: hands a request to the engine.
        step: waits for something to happen and gives what is complete by it.
    """
    source = iter(groups)
    is_over = False
    while not is_over or len(requests):
        is_starved = False
        while not (is_over or is_starved) and requests.tokens < window:
            try:
                group = next(source)
            except StopIteration:
                is_over = True
                break
            is_starved = group is None
            for request in group or ():
                submit(request)
        if len(requests):
            yield from step()
        # Nothing more is to be had for now: whoever waits for these must get them first.
        while is_starved and len(requests):
            yield from step()


def request_params(name: str, consumer: str) -> dict[str, Any]:
    """`kv_transfer_params` of a request whose states are wanted."""
    return {PARAMS: {"request": name, "consumer": consumer}}


def connect(doorway: Doorway, consumer: str, asked: CaptureSettings) -> StateClient:
    """The channel to an engine's connector, once it is sure that it captures what was asked.

    Raises:
        EngineError: nobody answers there.
        InputError: it captures something else than was planned.
    """
    longest = SampleLayout(len(asked.layers), asked.longest, asked.hidden_size)
    client = StateClient(
        doorway.address,
        bytes.fromhex(doorway.key),
        consumer=consumer,
        dtype=asked.storage_dtype.value,
        buffer_bytes=max(_buffer_bytes(), 2 * longest.nbytes),
    )
    for name, expected in (
        ("layers", list(asked.layers)),
        ("hidden_size", asked.hidden_size),
        ("compute_dtype", asked.compute_dtype),
    ):
        if client.facts[name] != expected:
            client.close()
            raise InputError(
                f"the engine has {name.replace('_', ' ')} {client.facts[name]}, the plan asks for "
                f"{expected}."
            )
    return client


def _buffer_bytes() -> int:
    """About a second of the fastest engine's states: they lie there for some of its steps."""
    is_large = psutil.virtual_memory().total >= _LARGE_MACHINE_BYTES
    return 2 * _BUFFER_BYTES if is_large else _BUFFER_BYTES
