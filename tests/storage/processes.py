"""Run a function in a process of its own, to see how that process ends."""

from __future__ import annotations

import multiprocessing
import subprocess
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest


def exit_code(work: Callable[..., None], *arguments: Any) -> int:
    """0 if `work` returned, 1 if it raised, `-n` if signal `n` killed the process."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    code = process.exitcode
    assert code is not None
    return code


def with_mounts(mounts: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a mount namespace of its own, in which `mounts` (shell) came first.

    The mounts are gone with the process. Skips the test where they are not permitted.
    """
    if not _may_mount():
        pytest.skip("this user may not mount file systems (unshare --mount failed)")
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )


@lru_cache(maxsize=1)
def _may_mount() -> bool:
    script = "mount -t tmpfs none /tmp"
    try:
        tried = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False
        )
    except FileNotFoundError:
        return False
    return tried.returncode == 0
