"""Memory of an extraction through vLLM over its whole run: all its processes, every other second.

    python -m benchmarks.vllm_memory --model MODEL [--samples 600] [--engine-arg NAME=VALUE]

What several processes share is counted once. The first figures after the load are lower: memory
that is bounded is not touched at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from eagle3data.extractor.prepare import prepare
from eagle3data.storage import layout
from eagle3data.storage.root import Root

_SECONDS = 2.0


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="eagle3data-memory-") as folder:
        prompts, url = Path(folder, "prompts.arrow"), Path(folder, "set")
        _write_prompts(options, prompts)
        command = [sys.executable, "-m", "eagle3data.cli.main", "extract", str(prompts)]
        command += ["--model", options.model, "--out", str(url), "--engine", "vllm"]
        for argument in options.engine_arg or []:
            command += ["--engine-arg", argument]
        process = subprocess.Popen(command)
        found = _watch(process, url)
        if process.returncode:
            raise SystemExit(f"extract ended with exit code {process.returncode}")
        _show(found)


def _watch(process: subprocess.Popen[bytes], url: Path) -> list[tuple[float, int, int]]:
    """Seconds, committed shards and bytes, from the first commit on."""
    found: list[tuple[float, int, int]] = []
    begin = time.monotonic()
    while process.poll() is None:
        shards = len(layout.committed_shards(Root(str(url)))) if (url / "index").exists() else 0
        if shards:
            found.append((time.monotonic() - begin, shards, _bytes_of_all(process.pid)))
        time.sleep(_SECONDS)
    return found


def _bytes_of_all(pid: int) -> int:
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in family:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def _show(found: list[tuple[float, int, int]]) -> None:
    # The last looks may have met processes that were ending.
    most = max(nbytes for _, _, nbytes in found)
    whole = [one for one in found if one[2] > most / 2]
    print(f"{'seconds':>8} {'shards':>7} {'GB':>7}")
    for seconds, shards, nbytes in whole[:: max(1, len(whole) // 20)]:
        print(f"{seconds:8.0f} {shards:7} {nbytes / 1e9:7.3f}")
    thirds = np.array_split(np.array([nbytes for _, _, nbytes in whole]) / 1e9, 3)
    said = ", ".join(f"{statistics.median(third):.3f}" for third in thirds)
    print(f"median of each third of the run: {said} GB; most {most / 1e9:.3f} GB")


def _write_prompts(options: argparse.Namespace, out: Path) -> None:
    rng = np.random.default_rng(0)
    source = out.with_suffix(".jsonl")
    with source.open("w") as file:
        for _ in range(options.samples):
            length = int(rng.integers(options.shortest, options.longest + 1))
            ids = rng.integers(10, 10_000, length).tolist()
            file.write(json.dumps({"input_ids": ids, "loss_mask": [1] * length}) + "\n")
    prepare([str(source)], options.model, out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--shortest", type=int, default=20)
    parser.add_argument("--longest", type=int, default=140)
    parser.add_argument("--engine-arg", action="append")
    return parser.parse_args()


if __name__ == "__main__":
    main()
