"""`EndpointEngine` against an imitated server: what it asks, joins, refuses, and how it ends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data.extractor.engines.base import CaptureSettings, Request
from eagle3data.extractor.engines.choice import EngineOptions, settle_version
from eagle3data.extractor.engines.endpoint import EndpointEngine
from eagle3data.extractor.prompts import read_prompts
from eagle3data.extractor.run import ExtractOptions, plan_extraction
from eagle3data.schema.errors import EngineError, InputError
from eagle3data.schema.manifest import StorageDtype
from tests.extractor.imitated_vllm import (
    FACTS,
    HIDDEN,
    LAYERS,
    Body,
    ImitatedVllm,
    made_up_states,
    tcp_address,
    unix_address,
)

ASKED = CaptureSettings(
    layers=LAYERS,
    hidden_size=HIDDEN,
    storage_dtype=StorageDtype.FLOAT16,
    compute_dtype="float32",
    longest=60,
)
DIGEST = str(FACTS["config_digest"])


@pytest.fixture(params=["unix", "tcp"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ImitatedVllm]:
    address = unix_address(tmp_path) if request.param == "unix" else tcp_address()
    server = ImitatedVllm(address)
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ImitatedVllm]:
    server = ImitatedVllm(unix_address(tmp_path))
    yield server
    server.stop()


def _requests(count: int) -> list[Request]:
    return [
        Request(sample_id=f"s{n}", shard=0, input_ids=np.arange(n, 2 * n + 1, dtype=np.int32))
        for n in range(count)
    ]


def test_each_request_gets_its_own_states(served: ImitatedVllm) -> None:
    bodies: list[Body] = []
    served.on_request = bodies.append
    engine = EndpointEngine(served.url + "/v1/", ASKED, DIGEST)
    requests = _requests(50)
    found = {}
    for captured in engine.capture([requests[:20], None, requests[20:]]):
        ids = captured.request.input_ids
        states = np.stack([captured.hidden_states[layer] for layer in LAYERS])
        np.testing.assert_array_equal(states, made_up_states(ids))
        assert (captured.witness_token, captured.witness_logprob) == (ids[-1] + 1, -0.5)
        captured.release()
        found[captured.request.sample_id] = True
    engine.close()
    engine.close()
    assert sorted(found) == sorted(request.sample_id for request in requests)
    assert engine.version == "vllm 0.99"
    # The server's own defaults (generation_config.json) must not bend the witness.
    assert {(body["temperature"], body["repetition_penalty"]) for body in bodies} == {(0.0, 1.0)}


def test_two_clients_at_once(served: ImitatedVllm) -> None:
    engines = [EndpointEngine(served.url, ASKED, DIGEST) for _ in range(2)]
    assert len(served.consumers) == 2
    both = zip(*(engine.capture([_requests(30)]) for engine in engines), strict=True)
    for pair in both:
        for captured in pair:
            expected = made_up_states(captured.request.input_ids)
            np.testing.assert_array_equal(captured.hidden_states[3], expected[1])
            captured.release()
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("layers", [1, 2], "captures layers 1,2, the plan asks for 1,3"),
        ("hidden_size", 16, "hidden size 16; --model has 8"),
        ("compute_dtype", "bfloat16", "give --compute-dtype bfloat16"),
        ("config_digest", "sha256:other", "serves the-model, whose config.json is not"),
    ],
)
def test_a_server_that_captures_something_else(
    server: ImitatedVllm, name: str, value: object, said: str
) -> None:
    server.facts[name] = value
    with pytest.raises(InputError, match=said):
        EndpointEngine(server.url, ASKED, DIGEST)


def test_a_config_that_nobody_can_read_is_taken(server: ImitatedVllm) -> None:
    server.facts["config_digest"] = None
    EndpointEngine(server.url, ASKED, DIGEST).close()


def test_a_context_without_room_for_the_witness(server: ImitatedVllm) -> None:
    server.context = ASKED.longest
    with pytest.raises(InputError, match="larger --max-model-len"):
        EndpointEngine(server.url, ASKED, DIGEST)


def test_servers_that_will_not_do(server: ImitatedVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="expected a URL like"):
        EndpointEngine("localhost:8000", ASKED, DIGEST)
    with pytest.raises(EngineError, match=r"/v1/models answered 404: .*Not Found"):
        EndpointEngine(server.url + "/elsewhere", ASKED, DIGEST)
    server.api_key = "secret"
    with pytest.raises(EngineError, match="set EAGLE3DATA_API_KEY"):
        EndpointEngine(server.url, ASKED, DIGEST)
    monkeypatch.setenv("EAGLE3DATA_API_KEY", "secret")
    EndpointEngine(server.url, ASKED, DIGEST).close()
    server.without_connector = True
    with pytest.raises(EngineError, match="without this package's connector"):
        EndpointEngine(server.url, ASKED, DIGEST)
    server.stop()
    with pytest.raises(EngineError, match="can't be reached"):
        EndpointEngine(server.url, ASKED, DIGEST)


def test_a_socket_that_is_not_on_this_machine(server: ImitatedVllm) -> None:
    server._address = "unix:/nowhere/states"
    with pytest.raises(EngineError, match="--listen tcp:HOST:PORT"):
        EndpointEngine(server.url, ASKED, DIGEST)


def test_several_engines_behind_one_url(server: ImitatedVllm) -> None:
    engine = EndpointEngine(server.url, ASKED, DIGEST)
    server.instance = "another"
    with pytest.raises(EngineError, match="more than one engine"):
        list(engine.capture([_requests(1)]))
    engine.close()


def test_a_refused_request_names_its_sample(server: ImitatedVllm) -> None:
    def refuse(body: Body) -> None:
        if len(body["prompt"]) == 4:
            raise ValueError("out of vocabulary")

    server.on_request = refuse
    engine = EndpointEngine(server.url, ASKED, DIGEST)
    with pytest.raises(EngineError, match=r"sample s3 was not run: .* 500: out of vocabulary"):
        list(engine.capture([_requests(8)]))
    engine.close()


def test_closing_does_not_wait_for_a_server_that_hangs(server: ImitatedVllm) -> None:
    """Ctrl-C, or an error of the writer, while requests are on their way."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(body: Body) -> None:
        if len(body["prompt"]) > 1:
            hangs.set()
            goes_on.wait()

    server.on_request = hang
    engine = EndpointEngine(server.url, ASKED, DIGEST)
    captured: Any = next(iter(engine.capture([_requests(100)])))
    hangs.wait()
    engine.close()
    assert not goes_on.is_set()
    captured.release()
    goes_on.set()


def test_a_connector_that_ends_in_the_middle(server: ImitatedVllm) -> None:
    engine = EndpointEngine(server.url, ASKED, DIGEST)
    (consumer,) = server.consumers.values()

    def end(_: Body) -> None:
        # As the kernel does it for a process that has ended.
        with socket.socket(fileno=os.dup(consumer._connection.fileno())) as raw:
            raw.shutdown(socket.SHUT_RDWR)

    server.on_request = end
    with pytest.raises(EngineError, match=r"run the same command again"):
        list(engine.capture([_requests(3)]))
    engine.close()


def test_a_new_set_names_the_servers_version(
    server: ImitatedVllm, prompts: Path, smollm2: Path
) -> None:
    options = ExtractOptions(engine=EngineOptions(endpoint=server.url))
    plan = plan_extraction(read_prompts(str(prompts)), str(smollm2), options)
    manifest = plan.manifest
    server.facts.update(
        layers=manifest.layers,
        hidden_size=manifest.hidden_size,
        compute_dtype="bfloat16",
        config_digest=manifest.target.config_digest,
    )
    server.context = 8192
    settled = settle_version(plan, options.engine).manifest
    assert settled.capture.engine_version == "vllm 0.99"
    assert settled.identity == manifest.identity
    server.context = 100
    with pytest.raises(InputError, match="larger --max-model-len"):
        settle_version(plan, options.engine)
