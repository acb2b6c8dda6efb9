"""The first view of a set of 1,000 shards and 10,000 samples, in Chromium, beside a small one's.

Each server is a process of its own; seconds are from asking for a page to its first paint and to
the end of its loading. The index is synthetic, the page cache warm, and nothing has asked the
server before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.index import write_parts
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import consolidate_index

PAGES = ("/", "/shards", "/samples", "/samples?sort=length&order=down", "/live")
SIZES = {"small": (10, 10), "large": (1000, 10)}
"""Shards, and samples of each."""
TOKENS = 1700
_TIMES = """() => {
  const [page] = performance.getEntriesByType("navigation");
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return {answered: page.responseEnd, painted: paint.startTime, loaded: page.loadEventEnd};
}"""


@contextmanager
def viewing(url: Path) -> Iterator[tuple[str, float]]:
    """`view` in a process: its address, and the seconds until it printed it."""
    command = [sys.executable, "-m", "eagle3data.cli.main", "view", str(url), "--port", "0"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline() if process.stdout is not None else ""
        yield line.removeprefix("Open ").strip(), time.perf_counter() - begin
        process.terminate()


def first_view(browser: Any, url: Path, path: str) -> dict[str, float]:
    """Seconds of the first page that a server is asked for, in a window that has nothing cached."""
    with viewing(url) as (address, started):
        context = browser.new_context()
        page = context.new_page()
        page.goto(address.rstrip("/") + path)
        page.wait_for_load_state("networkidle")
        times: dict[str, float] = page.evaluate(_TIMES)
        context.close()
    return {"started": started, **{name: value / 1000 for name, value in times.items()}}


def main() -> None:
    """Make both sets where they are missing, and look at each page of each, fresh every time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name, (parts, samples) in SIZES.items():
        if not (options.folder / name).exists():
            write_parts(options.folder / name, parts=parts, samples=samples, tokens=TOKENS)
            consolidate_index(Root(str(options.folder / name)))
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for path in PAGES:
            best: dict[str, dict[str, float]] = {}
            for _ in range(options.rounds):
                for name in SIZES:
                    seen = first_view(browser, options.folder / name, path)
                    if name not in best or seen["painted"] < best[name]["painted"]:
                        best[name] = seen
            ratio = best["large"]["painted"] / best["small"]["painted"]
            for name, seen in best.items():
                rounded = {key: round(value, 3) for key, value in seen.items()}
                print(f"{path:32} {name:6} {json.dumps(rounded)}")
            print(f"{path:32} painted, large to small: {ratio:.2f}")
        browser.close()


if __name__ == "__main__":
    main()
