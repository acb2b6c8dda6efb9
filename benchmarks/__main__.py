"""Reading and writing shards, and extraction, as ratios against baselines in the same run.

The machine is shared and noisy, so nothing here is an absolute promise: each case is run in
turn with its baseline, several times, and the medians' ratio is printed.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file, save_file

from eagle3data import Dataset, DatasetWriter, Manifest, Sample, open_dataset
from eagle3data.extractor.engines.base import Request
from eagle3data.extractor.engines.transformers import TransformersEngine
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import StorageDtype

LENGTHS = [1000, 1400, 1700, 2400, 1200, 2000]
LAYERS = [2, 30, 58, 61]
ROUNDS = 5
MODEL = Path(__file__).parent.parent / ".cache" / "smollm2"

Case = Callable[[], None]


def seconds_of(cases: dict[str, Case]) -> dict[str, float]:
    """Median seconds of each case; the cases take turns."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS + 1):
        for name, case in cases.items():
            begin = time.perf_counter()
            case()
            found[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def kimi_manifest(codec: str) -> Manifest:
    """The shape of Kimi-K2.5's states, in shards of about 60 MB."""
    return Manifest.synthetic(
        hidden_size=7168,
        num_hidden_layers=61,
        vocab_size=163_840,
        codec=codec,
        axis=TokenAxis(shard_tokens=4096, chunk_tokens=64),
    )


def samples(manifest: Manifest) -> list[Sample]:
    """Normal states rounded to bfloat16 first, as a bfloat16 engine gives them."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number, length in enumerate(LENGTHS):
        states = {
            layer: torch.randn(length, 7168, generator=generator).bfloat16().half().numpy()
            for layer in manifest.layers
        }
        ids = np.arange(length, dtype=np.int32)
        made.append(
            Sample(
                hidden_states=states,
                input_ids=ids,
                loss_mask=np.ones(length),
                sample_id=f"s{number}",
            )
        )
    return made


def write(folder: Path, manifest: Manifest, data: list[Sample]) -> None:
    """Write the samples as a data set."""
    with DatasetWriter.create(str(folder), manifest) as writer:
        for sample in data:
            writer.append(sample)


def bench_reading(folder: Path, table: Table) -> None:
    """Whole samples, page cache warm: ours (checked) against unchecked and other readers."""
    manifest = kimi_manifest("none")
    data = samples(manifest)
    write(folder / "set", manifest, data)
    for sample in data:
        tensors = {str(layer): states for layer, states in sample.hidden_states.items()}
        save_file(tensors, folder / f"{sample.sample_id}.safetensors")
    dataset = open_dataset(str(folder / "set"))
    out = np.ones((len(LAYERS), max(LENGTHS), 7168), dtype=np.float16)
    cases = {
        "safetensors load + copy, unchecked": lambda: _safetensors(folder, data, out),
        "eagle3data, checked": lambda: _ours(dataset, out),
        "zarr-python, checked": lambda: _zarr(dataset, out),
    }
    nbytes = sum(LENGTHS) * len(LAYERS) * 7168 * 2
    _rows(table, "read", seconds_of(cases), nbytes)


def _safetensors(folder: Path, data: list[Sample], out: Any) -> None:
    for sample in data:
        tensors = load_file(folder / f"{sample.sample_id}.safetensors")
        for slot, layer in enumerate(LAYERS):
            out[slot, : len(sample)] = tensors[str(layer)]


def _ours(dataset: Dataset, out: Any) -> None:
    for position, length in enumerate(LENGTHS):
        for slot, layer in enumerate(LAYERS):
            dataset.read_array(f"hidden_states/{layer}", position, out[slot, :length])


def _zarr(dataset: Dataset, out: Any) -> None:
    group: Any = zarr.open_group(dataset.url, mode="r")
    offsets = dataset.index["token_offset"].to_numpy().tolist()
    for offset, length in zip(offsets, LENGTHS, strict=True):
        for slot, layer in enumerate(LAYERS):
            out[slot, :length] = group[f"hidden_states/{layer}"][offset : offset + length]


def bench_writing(folder: Path, table: Table) -> None:
    """Samples to committed shards against a raw write and fsync of the same bytes."""
    manifest = kimi_manifest("none")
    data = samples(manifest)
    count = iter(range(1000))
    cases = {
        "raw write + fsync": lambda: _raw(folder / f"raw{next(count)}", data),
        "eagle3data": lambda: write(folder / f"set{next(count)}", manifest, data),
    }
    nbytes = sum(LENGTHS) * len(LAYERS) * 7168 * 2
    _rows(table, "write", seconds_of(cases), nbytes)


def _raw(path: Path, data: list[Sample]) -> None:
    with path.open("wb") as file:
        for sample in data:
            for states in sample.hidden_states.values():
                file.write(states.data)
        file.flush()
        os.fsync(file.fileno())


def bench_extraction(table: Table) -> None:
    """The engine with its hooks against the same model and batches without them."""
    engine = TransformersEngine(
        str(MODEL),
        layers=[2, 15, 27, 30],
        storage_dtype=StorageDtype.FLOAT16,
        compute_dtype="bfloat16",
    )
    plain = TransformersEngine(
        str(MODEL), layers=[], storage_dtype=StorageDtype.FLOAT16, compute_dtype="bfloat16"
    )
    rng = np.random.default_rng(0)
    requests = [
        Request(sample_id=str(n), input_ids=rng.integers(0, 49_152, 200).astype(np.int32))
        for n in range(16)
    ]
    cases = {
        "no capture (tokens)": lambda: _capture_all(plain, requests),
        "four layers captured": lambda: _capture_all(engine, requests),
    }
    tokens = sum(len(request.input_ids) for request in requests)
    _rows(table, "extract, tokens", seconds_of(cases), tokens)


def _capture_all(engine: TransformersEngine, requests: list[Request]) -> None:
    for _ in engine.capture(requests):
        pass


def _rows(table: Table, what: str, seconds: dict[str, float], amount: float) -> None:
    baseline = next(iter(seconds.values()))
    for name, taken in seconds.items():
        per_second = amount / taken
        shown = f"{per_second / 1e9:.2f} GB/s" if amount > 1e8 else f"{per_second:,.0f} /s"
        table.add_row(what, name, shown, f"{baseline / taken:.2f}")


def main() -> None:
    """Print one table."""
    warnings.filterwarnings("ignore", module="zarr")
    table = Table(box=None, header_style="bold")
    for name in ("what", "case", "speed", "of the first"):
        table.add_column(name, justify="right" if name in {"speed", "of the first"} else "left")
    with tempfile.TemporaryDirectory() as folder:
        bench_reading(Path(folder), table)
    with tempfile.TemporaryDirectory() as folder:
        bench_writing(Path(folder), table)
    if MODEL.exists():
        bench_extraction(table)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
