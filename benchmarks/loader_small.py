"""Packs of small samples: what one costs, alone and beside a loop that keeps Python busy.

    python -m benchmarks.loader_small /dev/shm [--samples 3000] [--busy 70]

Samples of 120 to 460 tokens at hidden 576 (SmolLM2's), packs of 16,384. A training loop of a small
draft mostly hands out kernels and holds Python's lock for it; `--busy` milliseconds of a plain loop
a pack stand for one. Against a copy of the same bytes into the same memory, in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.readers.loader import StreamingLoader
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.writers.dataset_writer import DatasetWriter

BUDGET, HIDDEN = 16_384, 576


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
    parser.add_argument("--rounds", type=int, default=4, help="epochs, after a first one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        dataset = write(f"{place}/set", options.samples)
        loader = StreamingLoader(dataset, token_budget=BUDGET, prefetch_bytes=600_000_000)
        nbytes = BUDGET * HIDDEN * 2 * len(dataset.manifest.layers)
        found: dict[str, list[tuple[float, float]]] = {"alone": [], "beside a busy loop": []}
        copies = []
        list(packs(loader, 0))  # memory's first use
        for _ in range(options.rounds):
            for name, busy in zip(found, (0.0, options.busy / 1e3), strict=True):
                found[name] += packs(loader, busy)
            copies += [copy_seconds(nbytes) for _ in range(5)]
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


if __name__ == "__main__":
    main()
