"""Commands that are killed -9 while they write, once what they write has grown by some files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def start(words: Sequence[object]) -> subprocess.Popen[str]:
    """Begin a command in a process of its own."""
    command = [sys.executable, "-m", "eagle3data.cli.main", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )


def entries(url: Path) -> int:
    """Files below a folder."""
    return sum(len(names) for _, _, names in os.walk(url))


def kill_after(process: subprocess.Popen[str], url: Path, count: int) -> bool:
    """Kill -9 once the folder holds so many files; false if the command ended first."""
    while process.poll() is None:
        if entries(url) >= count:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        time.sleep(0.005)
    process.communicate()
    return False
