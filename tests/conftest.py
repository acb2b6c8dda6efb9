"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer

from eagle3data.schema.machine import has_bfloat16_units
from tests.once import made_once
from tests.support import CONVERSATIONS, Command, eagle3data

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

# Its bits don't depend on what runs beside it, so a set made twice is the same to the byte. Tests
# of the vLLM engine name it.
os.environ["EAGLE3DATA_ENGINE"] = "transformers"
if not has_bfloat16_units():
    # There bfloat16 is emulated, ten times slower; what needs it (the faults) names it.
    os.environ["EAGLE3DATA_COMPUTE_DTYPE"] = "float32"
# Else each vLLM binds its threads to the same cores as every other, and they wait in circles.
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real SmolLM2-135M-Instruct as a Hugging Face folder, made when it is not there yet."""
    folder = REPOSITORY / ".cache" / "smollm2"
    tool = REPOSITORY / "tools" / "smollm2.py"
    done = subprocess.run(
        [sys.executable, str(tool), str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"tools/smollm2.py could not make {folder}:\n{done.stderr[-2000:]}")
    return folder


@pytest.fixture(scope="session")
def command() -> Command:
    return eagle3data


@pytest.fixture(scope="session")
def prompts(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every other one of the shipped conversations, of 50 to 377 tokens."""

    def make(folder: Path) -> None:
        source = folder / "conversations.jsonl"
        source.write_text("".join(CONVERSATIONS.read_text().splitlines(keepends=True)[::2]))
        out = folder / "prompts.arrow"
        done = eagle3data("prepare", source, "--model", smollm2, "--out", out)
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "prompts", make) / "prompts.arrow"


@pytest.fixture(scope="session")
def states(smollm2: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set as `extract` writes it by default: a bfloat16 run, stored as float16.

    Of all test processes; to be read, not to be changed.
    """

    def make(folder: Path) -> None:
        done = eagle3data("extract", prompts, "--model", smollm2, "--out", folder / "set")
        assert done.returncode == 0, done.stderr

    return str(made_once(tmp_path_factory, "states", make) / "set")


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """A real S3 server on loopback. One a session: fsspec keeps its file systems."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket's URL, with the environment that reaches it."""
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="states")
    return "s3://states"


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """A skipped test proves nothing: say so, with its reason."""
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"NOT PROVEN: {report.nodeid}: {report.longrepr[2]}")
