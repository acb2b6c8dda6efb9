"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import CONVERSATIONS, Command, eagle3data

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

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


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """A skipped test proves nothing: say so, with its reason."""
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"NOT PROVEN: {report.nodeid}: {report.longrepr[2]}")
