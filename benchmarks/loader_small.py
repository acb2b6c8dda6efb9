"""Packs of small samples: what one costs, and how much longer a busy loop takes beside the loader.

    python -m benchmarks.loader_small /dev/shm [--samples 3000] [--busy 70] [--operations 12000]

Samples of 120 to 460 tokens at hidden 576 (SmolLM2's), packs of 16,384. A training loop of a small
draft mostly hands out kernels: each lets Python's lock go for a moment and must take it again.
`--operations` tiny torch operations a pack stand for one, timed alone, beside the loader, and
beside a thread that copies and checksums as many bytes in two calls for every 4 MB, so that what
two cores and their memory cost is told from what the lock does. `--busy` milliseconds of a plain
loop stand for one that keeps the lock. All in turns, in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.readers.loader import StreamingLoader
from eagle3data.schema.digest import crc32c
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.writers.dataset_writer import DatasetWriter

BUDGET, HIDDEN = 16_384, 576
_AHEAD = 8
"""Packs that the loader holds."""
_BLOCK = 4 << 20


def write(url: str, samples: int) -> Dataset:
    """A set of random states."""
    manifest = Manifest.synthetic(hidden_size=HIDDEN, num_hidden_layers=30, vocab_size=1000)
    rng = np.random.default_rng(0)
    states = rng.standard_normal((460, HIDDEN)).astype(np.float16)
    with DatasetWriter.create(url, manifest) as writer:
        for number in range(samples):
            length = int(rng.integers(120, 460))
            writer.append(
                Sample(
                    hidden_states=dict.fromkeys(manifest.layers, states[:length]),
                    input_ids=rng.integers(0, 1000, length),
                    loss_mask=np.ones(length),
                    sample_id=f"s{number}",
                )
            )
    return open_dataset(url)


def packs(loader: StreamingLoader, busy: float) -> Iterator[tuple[float, float]]:
    """Seconds that each pack was waited for, and processor seconds of everything meanwhile."""
    stream = iter(loader)
    while True:
        asked, used = time.perf_counter(), time.process_time()
        if next(stream, None) is None:
            return
        waited = time.perf_counter() - asked
        until = time.thread_time() + busy
        while time.thread_time() < until:
            sum(range(200))
        yield waited, time.process_time() - used


def operations(count: int) -> float:
    """Seconds that so many tiny torch operations take."""
    first, second, out = (torch.ones(64) for _ in range(3))
    began = time.perf_counter()
    for _ in range(count):
        torch.add(first, second, out=out)
    return time.perf_counter() - began


def beside_loader(loader: StreamingLoader, count: int) -> list[float]:
    """Seconds of the operations after each pack, while the next ones are read."""
    # No more is read near the end, and the first are waited for.
    return [operations(count) for _ in loader][2 : -_AHEAD - 1]


def beside_copy(nbytes: int, count: int, rounds: int) -> list[float]:
    """Seconds of the operations, each while a thread copies and checksums so many bytes once."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)

    def work() -> None:
        for start in range(0, nbytes, _BLOCK):
            block = target[start : start + _BLOCK]
            np.copyto(block, source[start : start + _BLOCK])
            crc32c(block)

    found = []
    for _ in range(rounds):
        thread = threading.Thread(target=work)
        thread.start()
        found.append(operations(count))
        thread.join()
    return found


def copy_seconds(bytes_: int) -> float:
    """Processor seconds of a plain copy, the memory's pages known."""
    source, target = np.ones(bytes_, np.uint8), np.ones(bytes_, np.uint8)
    began = time.process_time()
    np.copyto(target, source)
    return time.process_time() - began


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the set is written; it is gone afterwards")
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--busy", type=float, default=70, help="milliseconds a pack")
    parser.add_argument("--operations", type=int, default=12_000, help="of torch, a pack")
    parser.add_argument("--threads", type=int, help="of the loader")
    parser.add_argument("--rounds", type=int, default=4, help="epochs, after a first one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        dataset = write(f"{place}/set", options.samples)
        nbytes = BUDGET * HIDDEN * 2 * len(dataset.manifest.layers)
        loader = StreamingLoader(
            dataset, token_budget=BUDGET, prefetch_bytes=_AHEAD * nbytes, threads=options.threads
        )
        loops: dict[str, list[float]] = {"alone": [], "loader": [], "copy": []}
        found: dict[str, list[tuple[float, float]]] = {"alone": [], "beside a busy loop": []}
        copies = []
        list(packs(loader, 0))  # memory's first use
        for _ in range(options.rounds):
            for name, busy in zip(found, (0.0, options.busy / 1e3), strict=True):
                found[name] += packs(loader, busy)
            copies += [copy_seconds(nbytes) for _ in range(5)]
            count = options.operations
            loops["alone"] += [operations(count) for _ in range(20)]
            loops["loader"] += beside_loader(loader, count)
            loops["copy"] += beside_copy(nbytes, count, 20)
    copying = statistics.median(copies)
    print(f"a copy of {nbytes / 1e6:.0f} MB: {copying * 1e3:.1f} ms of processor time")
    for name, rows in found.items():
        waited = statistics.mean(one[0] for one in rows)
        used = statistics.mean(one[1] for one in rows) - (
            options.busy / 1e3 if "busy" in name else 0
        )
        print(
            f"{name}: {used * 1e3:.1f} ms of processor time a pack, {used / copying:.2f} of the "
            f"copy's; waited {waited * 1e3:.1f} ms a pack"
        )

    alone, beside, copied = (statistics.median(loops[name]) * 1e3 for name in loops)
    print(
        f"{options.operations} tiny torch operations: {alone:.1f} ms alone; beside the loader "
        f"{beside:.1f} ms, {beside / alone:.2f} of that; beside a thread that copies and checksums "
        f"a pack's bytes {copied:.1f} ms, {copied / alone:.2f}"
    )


if __name__ == "__main__":
    main()
