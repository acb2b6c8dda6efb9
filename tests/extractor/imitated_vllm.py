"""A vLLM server with our connector, imitated: the same answers, states made up from the ids."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.extractor.engines.channel import Consumer, SampleLayout, StateServer
from eagle3data.extractor.engines.vllm_settings import INSTANCE, PARAMS
from eagle3data.schema.digest import tokens_crc32c

KEY = "f0" * 32
HIDDEN, LAYERS = 8, [1, 3]
FACTS = {
    "layers": LAYERS,
    "hidden_size": HIDDEN,
    "compute_dtype": "float32",
    "model": "the-model",
    "config_digest": "sha256:config",
    "vllm": "0.99",
}
Body = Mapping[str, Any]


def made_up_states(ids: npt.ArrayLike) -> npt.NDArray[np.float16]:
    """`[L, T, H]`: different for every token, position and layer."""
    tokens = np.asarray(ids)
    rows = tokens[:, None] + np.arange(len(tokens))[:, None] / 8 + np.arange(HIDDEN)
    return np.stack([rows * layer for layer in LAYERS]).astype(np.float16)


def deliver(consumer: Consumer, states: npt.NDArray[np.float16], header: dict[str, Any]) -> bool:
    """Put a sample where its client finds it, as the connector does; False without room."""
    layout = SampleLayout(*states.shape)
    region = consumer.reserve(layout.nbytes)
    if region is None:
        return False
    place = memoryview(consumer.memory)[region.offset : region.offset + layout.nbytes]
    np.frombuffer(place, np.float16, layout.values)[:] = states.ravel()
    values = states.astype(np.float32)
    rows = np.frombuffer(place, np.float32, offset=layout.rows_offset)
    rows[:] = np.stack([np.linalg.norm(values, axis=-1), np.abs(values).max(axis=-1)]).ravel()
    consumer.deliver(region, header)
    return True


def unix_address(folder: Path) -> str:
    return f"unix:{folder}/made/states"


def tcp_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp:0.0.0.0:{probe.getsockname()[1]}"


class ImitatedVllm:
    """Listens on loopback until the test ends.

    Attributes:
        url: of its HTTP API.
        facts: what its connector says; changed before it is asked.
        instance: named in every answer.
        on_request: called with each sample's body; what it raises becomes error 500.
        without_connector: whether it is a server like any other.
        api_key: asked for, where there is one.
        consumers: that are connected to the connector, by name.
    """

    def __init__(self, address: str) -> None:
        self.facts: dict[str, Any] = dict(FACTS)
        self.instance = "one"
        self.context = 100
        self.on_request: Callable[[Body], None] = lambda body: None
        self.without_connector = False
        self.api_key: str | None = None
        self.consumers: dict[str, Consumer] = {}
        self._address = address
        self._states = StateServer(address, bytes.fromhex(KEY), FACTS, self._welcome, self._part)
        handler = type("Handler", (_Handler,), {"imitated": self})
        self._http = _Http(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, body: Body | None, key: str | None) -> tuple[int, Any]:
        if self.api_key is not None and key != f"Bearer {self.api_key}":
            return 401, {"error": "Unauthorized"}
        if path == "/v1/models":
            return 200, {"data": [{"id": "served", "max_model_len": self.context}]}
        if path != "/v1/completions" or body is None:
            return 404, {"detail": "Not Found"}
        params = body.get("kv_transfer_params", {}).get(PARAMS)
        if self.without_connector or params is None:
            return 200, {"choices": [{}], "kv_transfer_params": None}
        if "consumer" not in params:
            facts = {**self.facts, "address": self._address, "key": KEY, INSTANCE: self.instance}
            return 200, {"choices": [{}], "kv_transfer_params": {PARAMS: facts}}
        try:
            self.on_request(body)
        except ValueError as error:
            return 500, {"error": {"message": str(error)}}
        self._deliver(params, body["prompt"])
        logprobs = {"tokens": [f"token_id:{body['prompt'][-1] + 1}"], "token_logprobs": [-0.5]}
        answer = {PARAMS: {INSTANCE: self.instance}}
        return 200, {"choices": [{"logprobs": logprobs}], "kv_transfer_params": answer}

    def _deliver(self, params: Mapping[str, str], ids: list[int]) -> None:
        consumer = self.consumers.get(params["consumer"])
        if consumer is None:
            return  # it has hung up
        states = made_up_states(ids)
        crc = tokens_crc32c(np.asarray(ids, np.int32))
        header = {"request": params["request"], "tokens": len(ids), "tokens_crc32c": crc}
        deliver(consumer, states, header)

    def _welcome(self, consumer: Consumer) -> None:
        self.consumers[consumer.name] = consumer

    def _part(self, consumer: Consumer) -> None:
        del self.consumers[consumer.name]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    imitated: ImitatedVllm

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Body | None) -> None:
        status, answer = self.imitated.answer(self.path, body, self.headers["Authorization"])
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""
