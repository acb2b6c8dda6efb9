"""A real vLLM server as a process of the tests, and what it says of itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import urllib3

from tests.support import eagle3data

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
_STARTS_WITHIN = 600.0


class VllmProcess:
    """A server on loopback, started with the arguments of `serve-args`.

    Attributes:
        url: of its HTTP API.
    """

    def __init__(self, model: Path, folder: Path, *words: str, listen: str) -> None:
        """Begin to load; `wait` for it before it is used."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / f"{port}.log"
        arguments = json.loads(eagle3data("serve-args", model, "--listen", listen, "--json").stdout)
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"),
            *words,
            *arguments["arguments"],
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **_CPU}, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers."""
        until = time.monotonic() + _STARTS_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"vLLM did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """All its processes at once, as a machine that fails."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Let it end by itself."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def gauge(self, name: str) -> float:
        """One of its metrics."""
        text = urllib3.request("GET", f"{self.url}/metrics").data.decode()
        found = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
        assert found is not None, text
        return float(found[1])

    def is_idle(self) -> bool:
        """Whether no request runs or waits, and no page of its cache is kept."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return not any(map(self.gauge, names))

    def client_memories(self) -> int:
        """Buffers of clients that its processes keep mapped or open."""
        found = 0
        for process in psutil.Process(self._process.pid).children(recursive=True):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            found += "memfd:eagle3data-states" in maps
        return found

    def _answers(self) -> bool:
        try:
            return urllib3.request("GET", f"{self.url}/health", retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False


def words_of(prompts: Path, model: Path, url: str, server: VllmProcess) -> Sequence[str]:
    """An `extract` through a server."""
    return [
        *("extract", str(prompts), "--model", str(model), "--out", url, "--engine", "vllm"),
        *("--endpoint", server.url, "--compute-dtype", "float32", "--shard-tokens", "384"),
    ]
