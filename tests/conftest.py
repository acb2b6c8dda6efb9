"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
