"""The channel between engine and writer: who may connect, and what becomes of who is gone."""

from __future__ import annotations

import socket
import threading
import uuid
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import pytest

from eagle3data.extractor.engines.channel import Consumer, SampleLayout, StateClient, StateServer
from eagle3data.extractor.engines.vllm_settings import Doorway, capture_arguments, command_line
from eagle3data.schema.errors import EngineError, InputError
from tests.extractor.imitated_vllm import deliver, tcp_address

KEY = b"k" * 32
FACTS = {"layers": [1, 2], "hidden_size": 4}
SAMPLE_BYTES = SampleLayout(2, 3, 4).nbytes


class Served:
    """A server, and the clients that it has welcomed or missed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.came: dict[str, Consumer] = {}
        self.left = threading.Event()
        StateServer(address, KEY, FACTS, self._welcome, lambda _: self.left.set())

    def _welcome(self, consumer: Consumer) -> None:
        self.came[consumer.name] = consumer

    def connect(self, key: bytes = KEY, buffer_bytes: int = 4096) -> tuple[StateClient, Consumer]:
        name = uuid.uuid4().hex
        address = self.address.replace("0.0.0.0", "127.0.0.1")
        client = StateClient(
            address, key, consumer=name, dtype="float16", buffer_bytes=buffer_bytes
        )
        return client, self.came[name]


@pytest.fixture(params=["unix", "tcp"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    return Served(f"unix:{tmp_path}/new/states" if request.param == "unix" else tcp_address())


def _send(consumer: Consumer, value: float) -> None:
    states = np.full((2, 3, 4), value, np.float16)
    while not deliver(consumer, states, {"request": str(value), "tokens": 3, "tokens_crc32c": 7}):
        pass


def test_states_arrive_and_their_memory_is_used_again(served: Served) -> None:
    client, consumer = served.connect()
    for value in range(5):
        _send(consumer, value)
        received = client.receive(None)
        assert received is not None
        assert (received.request, received.tokens, received.tokens_crc32c) == (
            str(value),
            3,
            7,
        )
        assert received.states.shape == (2, 3, 4)
        assert (received.states == value).all()
        np.testing.assert_allclose(received.norms, 2 * value)
        assert (received.largest == value).all()
        received.release()
    client.close()


def test_without_the_key_nobody_comes_in(served: Served) -> None:
    with pytest.raises(EngineError, match="no eagle3data connector answers"):
        served.connect(b"x" * 32)
    client, _ = served.connect()
    client.close()


def test_one_that_says_nothing_hinders_nobody(served: Served) -> None:
    place = served.address.removeprefix("unix:")
    if served.address.startswith("tcp:"):
        silent = Client(("127.0.0.1", int(served.address.rpartition(":")[2])))
    else:
        silent = Client(place)
    client, _ = served.connect()
    client.close()
    silent.close()


def test_a_client_that_is_gone_is_known(served: Served) -> None:
    client, consumer = served.connect()
    assert not consumer.is_gone
    client.close()
    served.left.wait()
    assert consumer.is_gone


def test_a_full_buffer_has_room_again_after_a_release(tmp_path: Path) -> None:
    served = Served(f"unix:{tmp_path}/states")
    client, consumer = served.connect(buffer_bytes=2 * 4096)
    _send(consumer, 1)
    _send(consumer, 2)
    assert consumer.reserve(SAMPLE_BYTES) is None
    first = client.receive(None)
    assert first is not None
    assert consumer.reserve(SAMPLE_BYTES) is None  # it is being read
    first.release()
    while (region := consumer.reserve(SAMPLE_BYTES)) is None:
        pass
    assert region.offset == 0
    second = client.receive(None)
    assert second is not None
    assert (second.states == 2).all()
    with pytest.raises(EngineError, match="does not fit into the buffer"):
        consumer.reserve(3 * 4096)


def test_a_dead_servers_socket_is_replaced_a_live_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "states"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    served = Served(f"unix:{path}")
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(EngineError, match="can't listen at .* still runs, end it"):
        Served(f"unix:{path}")
    served.connect()[0].close()


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no eagle3data connector answers at unix:"):
        StateClient(f"unix:{tmp_path}/states", KEY, consumer="c", dtype="float16", buffer_bytes=1)


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("/tmp/states", "expected unix:PATH or tcp:HOST:PORT"),
        ("tcp:host", "expected unix:PATH or tcp:HOST:PORT"),
        ("unix:/tmp/my states", "only letters"),
        ("unix:/" + "x" * 100, "100 bytes at most"),
    ],
)
def test_addresses_that_can_not_be(listen: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Doorway.of_server(listen)


def test_words_of_a_command_line() -> None:
    doorway = Doorway(address="tcp:h:1", key="f0")
    words = command_line(capture_arguments([2, 15], doorway))
    prefix = "--kv-transfer-config.kv_connector_extra_config.eagle3data"
    assert words[-1] == "--no-enable-prefix-caching"
    assert f"{prefix}.address=tcp:h:1" in words
    assert not any(word.startswith(f"{prefix}.owner") for word in words)
    ids = "draft_model_config.hf_config.eagle_aux_hidden_state_layer_ids=[2,15]"
    assert f"--speculative-config.{ids}" in words
