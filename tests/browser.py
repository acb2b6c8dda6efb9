"""A page in a real browser: what it holds once it is loaded, and what the console says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Opened:
    """A page as a browser saw it.

    Attributes:
        dom: serialised after the page was loaded.
        complaints: what the console showed.
    """

    dom: str
    complaints: list[str]


def open_page(file: Path, profile: Path) -> Opened:
    """Open a file in headless Chromium; the test is skipped, not proven, where there is none."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium is installed: no browser has opened the page")
    command = [
        browser,
        "--headless",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        "--dump-dom",
        file.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return Opened(dom=done.stdout, complaints=re.findall(r".*:CONSOLE.*", done.stderr))
