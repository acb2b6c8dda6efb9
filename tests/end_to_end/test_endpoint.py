"""`extract --endpoint` through a real `vllm serve`: its states, its other users, its deaths."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import urllib3

from eagle3data import open_dataset
from tests.extractor.imitated_vllm import tcp_address
from tests.extractor.vllm_processes import VllmProcess, needs_vllm, words_of
from tests.killing import kill_after, start
from tests.support import CONVERSATIONS, eagle3data

pytestmark = needs_vllm

SMALL_STEPS = ("--max-num-batched-tokens", "192")
"""Most prompts take several, and nothing is over at once."""


@pytest.fixture(scope="module")
def some_prompts(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("some")
    source, out = folder / "some.jsonl", folder / "some.arrow"
    source.write_text("".join(CONVERSATIONS.read_text().splitlines(keepends=True)[:16]))
    done = eagle3data("prepare", source, "--model", smollm2, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def reference(smollm2: Path, some_prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same prompts through transformers in float32."""
    url = str(tmp_path_factory.mktemp("reference") / "set")
    words = ["extract", some_prompts, "--model", smollm2, "--out", url, "--shard-tokens", "384"]
    done = eagle3data(*words, "--engine", "transformers", "--compute-dtype", "float32")
    assert done.returncode == 0, done.stderr
    return url


@pytest.fixture(scope="module")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcess]:
    """Shares memory with its clients, and runs prompts in small steps."""
    folder = tmp_path_factory.mktemp("server")
    listen = f"unix:{folder}/states"
    server = VllmProcess(smollm2, folder, *SMALL_STEPS, listen=listen)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def _require_equal(url: str, reference: str) -> float:
    """Compare a set with transformers' of the same prompts; the largest relative error."""
    dataset, expected = open_dataset(url), open_dataset(reference)
    assert dataset.index["sample_id"].to_pylist() == expected.index["sample_id"].to_pylist()
    for name in ("tokens_crc32c", "witness_token"):
        assert dataset.index[name].equals(expected.index[name])
    found, wanted = (np.array(each.index["witness_logprob"]) for each in (dataset, expected))
    assert np.abs(found - wanted).max() < 1e-3
    worst = 0.0
    for at in range(len(dataset)):
        states, right = dataset[at].hidden_states, expected[at].hidden_states
        for layer in expected.manifest.layers:
            exact = right[layer].astype(np.float64)
            error = np.linalg.norm(states[layer] - exact) / np.linalg.norm(exact)
            worst = max(worst, float(error))
    assert worst < 1e-3
    return worst


def _complete(server: VllmProcess, body: dict[str, Any]) -> str:
    """What the server's other users ask for."""
    url = f"{server.url}/v1/completions"
    answer = urllib3.request("POST", url, json=body, timeout=600).json()
    return str(answer["choices"][0]["text"])


def _until(condition: Callable[[], bool]) -> None:
    """Metrics lag behind what they measure."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_states_are_transformers_own(
    server: VllmProcess, some_prompts: Path, smollm2: Path, tmp_path: Path, reference: str
) -> None:
    url = str(tmp_path / "set")
    other = eagle3data(*words_of(some_prompts, smollm2, url, server), "--layers", "2,30")
    assert other.returncode == 2
    assert "captures layers 2,15,27,30, the plan asks for 2,30" in other.stderr
    assert not Path(url).exists()
    done = eagle3data(*words_of(some_prompts, smollm2, url, server))
    assert done.returncode == 0, done.stderr
    print(f"largest relative error {_require_equal(url, reference):.1e}")
    assert open_dataset(url).manifest.capture.engine_version.startswith("vllm 0.")


def test_two_extractions_and_a_chat_at_once(
    server: VllmProcess, some_prompts: Path, smollm2: Path, tmp_path: Path, reference: str
) -> None:
    urls = [str(tmp_path / name) for name in ("one", "two")]
    running = [start(words_of(some_prompts, smollm2, url, server)) for url in urls]
    body = {"model": str(smollm2), "prompt": "1, 2, 3, 4,", "max_tokens": 12, "temperature": 0}
    assert _complete(server, body).startswith(" 5, 6, 7")
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    for url in urls:
        _require_equal(url, reference)


def test_a_killed_client_leaves_nothing_behind(
    server: VllmProcess, some_prompts: Path, smollm2: Path, tmp_path: Path, reference: str
) -> None:
    url = tmp_path / "set"
    words = words_of(some_prompts, smollm2, str(url), server)
    assert kill_after(start(words), url / "index", 1)
    _until(server.is_idle)
    _until(lambda: not server.client_memories())
    done = eagle3data(*words)
    assert done.returncode == 0, done.stderr
    _require_equal(str(url), reference)


def test_requests_that_nobody_waits_for_leave_nothing_behind(
    server: VllmProcess, smollm2: Path
) -> None:
    """Aborted ones, since the client has hung up, and finished ones of a client never seen."""
    where = urlsplit(server.url)
    body = {
        "model": str(smollm2),
        "prompt": list(range(10, 800)),
        "max_tokens": 200,
        "ignore_eos": True,
        "kv_transfer_params": {"eagle3data": {"request": "r", "consumer": "nobody"}},
    }
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    for _ in range(3):
        with socket.create_connection((where.hostname, where.port or 0)) as connection:
            connection.sendall(head.encode() + data)
            _until(lambda: server.gauge("num_requests_running") > 0)
    _until(server.is_idle)
    for _ in range(3):
        _complete(server, {**body, "max_tokens": 1})
    _until(server.is_idle)


@pytest.mark.soak
def test_bytes_over_tcp_and_another_server_that_goes_on(
    server: VllmProcess,
    some_prompts: Path,
    prompts: Path,
    smollm2: Path,
    tmp_path: Path,
    reference: str,
) -> None:
    inline = VllmProcess(smollm2, tmp_path, *SMALL_STEPS, listen=tcp_address())
    try:
        inline.wait()
        whole, url = str(tmp_path / "whole"), tmp_path / "set"
        done = eagle3data(*words_of(some_prompts, smollm2, whole, inline))
        assert done.returncode == 0, done.stderr
        _require_equal(whole, reference)
        _kill_in_the_middle(inline, url, words_of(prompts, smollm2, str(url), inline))
    finally:
        inline.stop()
    done = eagle3data(*words_of(prompts, smollm2, str(url), server))
    assert done.returncode == 0, done.stderr
    again = eagle3data("validate", url, "--level", "full")
    assert again.returncode == 0, again.stdout


def test_a_server_that_dies(server: VllmProcess, smollm2: Path, tmp_path: Path) -> None:
    """The last of all, since nothing comes after it."""
    url = tmp_path / "set"
    words = words_of(_long_work(smollm2, tmp_path), smollm2, str(url), server)
    _kill_in_the_middle(server, url, words)
    committed = len(list((url / "index").glob("0*.arrow")))
    again = eagle3data(*words)
    assert again.returncode == 2
    assert "can't be reached" in again.stderr
    assert len(list((url / "index").glob("0*.arrow"))) == committed >= 1


def _long_work(smollm2: Path, folder: Path) -> Path:
    """Prompts that a server is at for much longer than the first of them take to be written."""
    source, out = folder / "many.jsonl", folder / "many.arrow"
    with source.open("w") as file:
        for number in range(12):
            for line in CONVERSATIONS.read_text().splitlines():
                row = json.loads(line)
                row["messages"][0]["content"] = f"{number}. {row['messages'][0]['content']}"
                file.write(json.dumps({"messages": row["messages"]}) + "\n")
    done = eagle3data("prepare", source, "--model", smollm2, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def _kill_in_the_middle(server: VllmProcess, url: Path, words: Sequence[str]) -> None:
    process = start(words)
    while process.poll() is None and not list((url / "index").glob("0*.arrow")):
        time.sleep(0.005)
    server.kill()
    _, stderr = process.communicate()
    assert process.returncode == 2, stderr
    assert "run the same command again to continue" in stderr
    assert "Traceback" not in stderr
