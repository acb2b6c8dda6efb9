"""The road's first half on the real model: conversations to prompts to a data set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., "subprocess.CompletedProcess[str]"]
CONVERSATIONS = Path(__file__).parent.parent / "data" / "conversations.jsonl"


def eagle3data(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "eagle3data.cli.main", *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )


@pytest.fixture(scope="session")
def command() -> Command:
    return eagle3data


@pytest.fixture(scope="session")
def prompts(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of the shipped conversations, of 30 to some hundred tokens."""
    out = tmp_path_factory.mktemp("prompts") / "prompts.arrow"
    done = eagle3data("prepare", CONVERSATIONS, "--model", smollm2, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def states(smollm2: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set as `extract` writes it by default: a bfloat16 run, stored as float16."""
    url = tmp_path_factory.mktemp("states") / "set"
    done = eagle3data("extract", prompts, "--model", smollm2, "--out", url)
    assert done.returncode == 0, done.stderr
    return str(url)
