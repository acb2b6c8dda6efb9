"""Extraction with and without capture, as a ratio in the same run: `make bench`."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from eagle3data.bench.turns import Case, take_turns
from eagle3data.extractor.engines.base import Request
from eagle3data.extractor.engines.transformers import TransformersEngine
from eagle3data.schema.manifest import StorageDtype

ROUNDS = 5
MODEL = Path(__file__).parent.parent / ".cache" / "smollm2"


def main() -> None:
    """Print one table: the engine with its hooks against the same model without them."""
    warnings.filterwarnings("ignore", module="zarr")
    rng = np.random.default_rng(0)
    requests = [
        Request(sample_id=str(n), shard=0, input_ids=rng.integers(0, 49_152, 200).astype(np.int32))
        for n in range(16)
    ]
    tokens = sum(len(request.input_ids) for request in requests)
    cases = [
        Case(name=name, run=partial(_capture_all, _engine(layers), requests), nbytes=tokens)
        for name, layers in (("no capture", []), ("four layers captured", [2, 15, 27, 30]))
    ]
    for case in cases:
        case.run()  # the first run of a model is slower
    timings = take_turns(cases, ROUNDS)
    table = Table(box=None, header_style="bold")
    for name in ("extraction", "tokens/s", "of no capture"):
        table.add_column(name, justify="left" if name == "extraction" else "right")
    for timing in timings:
        ratio = timing.speed / timings[0].speed
        table.add_row(timing.case.name, f"{timing.speed:,.0f}", f"{ratio:.2f}")
    Console(width=100).print(table)


def _engine(layers: list[int]) -> TransformersEngine:
    return TransformersEngine(
        str(MODEL),
        layers=layers,
        storage_dtype=StorageDtype.FLOAT16,
        compute_dtype="bfloat16",
    )


def _capture_all(engine: TransformersEngine, requests: list[Request]) -> None:
    for _ in engine.capture([requests]):
        pass


if __name__ == "__main__":
    main()
