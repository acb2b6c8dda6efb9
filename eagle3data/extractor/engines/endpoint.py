"""A `vllm serve` that runs already, used instead of an engine of one's own.

The server was started with the arguments of `eagle3data serve-args`. Token ids go in over its
HTTP API, the witness comes back with the answer, the states come through the connector's channel.
Any number of extractions may use one server.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eagle3data.extractor.engines.addresses import UNIX
from eagle3data.extractor.engines.base import Captured, CaptureSettings, Request
from eagle3data.extractor.engines.channel import Received
from eagle3data.extractor.engines.vllm_client import (
    OpenRequests,
    connect,
    run_ahead,
)
from eagle3data.extractor.engines.vllm_server import REQUESTS_AT_ONCE, Served, VllmServer
from eagle3data.schema.errors import EngineError, InputError

_WINDOW_TOKENS = 65_536
_POLL_SECONDS = 0.5


class EndpointEngine:
    """A target that a vLLM server has loaded.

    Attributes:
        name: `vllm`.
        version: of the server's vLLM.
        compute_dtype: dtype the model runs in.
        switches: settings that can change the states.
    """

    name = "vllm"

    def __init__(self, url: str, asked: CaptureSettings, config_digest: str) -> None:
        """Connect to the server and to its connector.

        Args:
            url: of the server; `EAGLE3DATA_API_KEY` is its API key.
            asked: what to capture.
            config_digest: of the target, as its manifest has it.

        Raises:
            EngineError: no server answers, or it runs without the connector.
            InputError: it captures something else than was planned, or of another model.
        """
        self._server = VllmServer(url)
        self._served = self._server.describe()
        require_served(self._served, asked, config_digest, url)
        self._consumer = uuid.uuid4().hex
        try:
            self._client = connect(self._served.doorway, self._consumer, asked)
        except EngineError as error:
            raise EngineError(f"{error} {_how_to_meet(self._served)}") from error
        self._requests = OpenRequests(asked.layers)
        self._asked: queue.SimpleQueue[tuple[str, Request] | None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[_Answer | Received | EngineError] = queue.SimpleQueue()
        self._closed = threading.Event()
        # Daemons: a request that hangs must not keep a run from ending.
        self._askers = [
            threading.Thread(target=self._ask_all, name="eagle3data-http", daemon=True)
            for _ in range(REQUESTS_AT_ONCE)
        ]
        self._listener = threading.Thread(target=self._listen, daemon=True)
        for thread in (*self._askers, self._listener):
            thread.start()
        self.version = f"vllm {self._client.facts['vllm']}"
        self.compute_dtype = str(self._client.facts["compute_dtype"])
        self.switches = {"endpoint": url}

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        """Run requests as they come; so many are always ahead that the server has a choice."""
        return run_ahead(groups, self._requests, _WINDOW_TOKENS, self._submit, self._step)

    def close(self) -> None:
        """Hang up; the server goes on, and drops what was not finished."""
        self._closed.set()
        for _ in self._askers:
            self._asked.put(None)
        self._listener.join()
        self._client.close()
        self._server.close()

    def _submit(self, request: Request) -> None:
        self._asked.put((self._requests.add(request), request))

    def _ask_all(self) -> None:
        while (asked := self._asked.get()) is not None and not self._closed.is_set():
            name, request = asked
            try:
                ids = request.input_ids.tolist()
                token, logprob = self._server.prefill(self._served, ids, name, self._consumer)
                self._arrived.put(_Answer(name, token, logprob))
            except EngineError as error:
                self._arrived.put(
                    EngineError(
                        f"sample {request.sample_id} was not run: {error} What is committed "
                        "stays: run the same command again to continue."
                    )
                )

    def _step(self) -> Iterator[Captured]:
        arrived = self._arrived.get()
        if isinstance(arrived, EngineError):
            raise arrived
        if isinstance(arrived, _Answer):
            done = self._requests.answer(arrived.name, arrived.token, arrived.logprob)
        else:
            done = self._requests.receive(arrived)
        if done is not None:
            yield done

    def _listen(self) -> None:
        """Pass the states on to the thread that joins them."""
        while not self._closed.is_set():
            try:
                received = self._client.receive(_POLL_SECONDS)
            except EngineError as error:
                self._arrived.put(error)
                return
            if received is not None:
                self._arrived.put(received)


@dataclass(frozen=True)
class _Answer:
    name: str
    token: int
    logprob: float


def require_served(served: Served, asked: CaptureSettings, config_digest: str, url: str) -> None:
    """Refuse a server that would give other states than were planned.

    What can be told is the model's config, not its weights: two fine-tunes of one model look
    alike.

    Raises:
        InputError: what differs, and what to do.
    """
    facts = served.facts
    if facts["config_digest"] not in (config_digest, None):
        raise InputError(
            f"{url} serves {facts['model']}, whose config.json is not that of --model: give the "
            "model that is served."
        )
    if facts["hidden_size"] != asked.hidden_size:
        raise InputError(
            f"{url} serves {facts['model']} with hidden size {facts['hidden_size']}; --model has "
            f"{asked.hidden_size}."
        )
    if facts["layers"] != list(asked.layers):
        raise InputError(
            f"{url} captures layers {_listed(facts['layers'])}, the plan asks for "
            f"{_listed(asked.layers)}: give `extract` and `serve-args` the same --layers."
        )
    if facts["compute_dtype"] != asked.compute_dtype:
        raise InputError(
            f"{url} runs in {facts['compute_dtype']}, the plan asks for {asked.compute_dtype}: "
            f"give --compute-dtype {facts['compute_dtype']}, or start the server with --dtype "
            f"{asked.compute_dtype}."
        )
    if served.context is not None and served.context <= asked.longest:
        raise InputError(
            f"{url} serves contexts of {served.context} tokens; the longest sample has "
            f"{asked.longest} and the witness is one more. Start it with a larger --max-model-len."
        )


def _listed(layers: Iterable[int]) -> str:
    return ",".join(map(str, layers))


def _how_to_meet(served: Served) -> str:
    if served.doorway.address.startswith(UNIX):
        return (
            "The server and `extract` must run on one machine, as one user, and see the same "
            "files; else start the server with `serve-args --listen tcp:HOST:PORT`."
        )
    return "Is that port of the server's machine open to this one?"
