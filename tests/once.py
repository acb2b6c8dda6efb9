"""What is made once for all the processes that `make test` spreads the tests over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None], seconds: float = 900
) -> Path:
    """A folder that the first process to ask for it fills, while others wait for it.

    Args:
        factory: of the process; those of one run have folders in one place.
        name: tells what is made from all else that is.
        make: fills the folder, which is there and empty; where it fails, the next one tries.
        seconds: to wait for another process at most.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(shared / f"{name}.lock", timeout=seconds):
        done = shared / f"{name}.done"
        if not done.exists():
            folder = factory.mktemp(name)
            make(folder)
            done.write_text(str(folder))
    return Path(done.read_text())
