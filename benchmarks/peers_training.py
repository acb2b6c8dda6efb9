"""speculators' own trainer on a data set of ours and on its own files: the same losses?

    python -m benchmarks.peers_training STATES --model MODEL --folder DIR

Exports the set in speculators' layout, then trains twice with the same seed: from
`hs_*.safetensors` and, through `interop.speculators_backend`, from STATES itself. Prints both loss
by loss, and the seconds of each; ends with 1 if any loss differs. Needs speculators
(docs/speculators.md).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.trainers import epochs_of, run
from eagle3data.interop.training_order import TrainingOrder
from eagle3data.interop.write_speculators import write
from eagle3data.readers.dataset import Dataset, open_dataset

LOSSES = ("loss", "loss_0", "loss_1", "loss_2")


def train(
    name: str, arguments: argparse.Namespace, dataset: Dataset, words: list[Any]
) -> dict[str, Any]:
    """One run of their trainer: every loss of it, and where its seconds went."""
    out = arguments.folder / name
    out.mkdir(parents=True, exist_ok=True)
    layers = sorted(dataset.manifest.layers)[:-1]
    common = ["--verifier-name-or-path", arguments.model, "--target-layer-ids", *layers]
    common += ["--train-data-ratio", TrainingOrder(dataset).train_ratio or 0.9]
    common += ["--total-seq-len", arguments.budget, "--max-steps", arguments.steps]
    # Their loop begins every epoch that it was told of, even when the steps are done.
    common += [
        "--epochs",
        epochs_of(dataset, arguments),
        "--draft-vocab-size",
        arguments.draft_vocab,
        "--seed",
        0,
    ]
    common += ["--hidden-states-dtype", "float32", "--optimizer", "adamw", "--on-missing", "raise"]
    common += ["--save-path", out / "checkpoints", "--log-dir", out / "logs"]
    common += ["--no-resume-from-checkpoint", *words]
    began = time.perf_counter()
    run("benchmarks.speculators_trainer", [out / "metrics.jsonl", *common], out)
    seconds = time.perf_counter() - began
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    evaluations = [line["val"] for line in lines if line["kind"] == "val"]
    return {
        "losses": [[step["train"][loss] for loss in LOSSES] for step in steps],
        "held_out": [value for one in evaluations for value in one.values()],
        "seconds": seconds,
        "step": statistics.median(step["profile"]["step_ms"] for step in steps) / 1e3,
        "fetch": statistics.median(step["profile"]["fetch_ms"] for step in steps) / 1e3,
    }


def read_in_turns(
    arguments: argparse.Namespace, dataset: Dataset, files: Path, rounds: int = 5
) -> dict[str, float]:
    """Seconds from every row to a packed batch of theirs, both ways taking turns: the medians."""
    from speculators.train.data import ArrowDataset, CollateFn

    from eagle3data.interop.speculators_backend import DataSetTransfer

    common: dict[str, Any] = {
        "max_len": arguments.budget,
        "datapath": files,
        "on_missing": "raise",
    }
    ways = {
        "their files": ArrowDataset(**common),
        "the set": ArrowDataset(
            transfer=DataSetTransfer(dataset.url, dataset.generation), **common
        ),
    }
    collate = CollateFn(arguments.budget, dataset.manifest.hidden_size, dtype=torch.float32)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, rows in ways.items():
            began = time.perf_counter()
            for row in range(len(rows)):
                collate([rows[row]])
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in times.items()}


def main(words: list[str] | None = None) -> int:
    """Train twice, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("states")
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the exports and the runs")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--draft-vocab", type=int, default=4096)
    arguments = parser.parse_args(words)
    dataset = open_dataset(arguments.states)
    rows, files = arguments.folder / "rows", arguments.folder / "files"
    began = time.perf_counter()
    write(dataset, rows, states=False)
    of_rows = time.perf_counter() - began
    began = time.perf_counter()
    write(dataset, files)
    of_files = time.perf_counter() - began
    sizes = [sum(path.stat().st_size for path in folder.rglob("*")) for folder in (rows, files)]
    print(f"rows alone: {sizes[0] / 1e6:.1f} MB, {of_rows:.1f} s to write")
    print(f"rows and states: {sizes[1] / 1e6:.1f} MB, {of_files:.1f} s to write")
    backend = ["--hidden-states-backend", "eagle3data", "--eagle3data-url", dataset.url]
    theirs = train("from-files", arguments, dataset, ["--data-path", files])
    ours = train("from-set", arguments, dataset, ["--data-path", rows, *backend])
    print("step  loss, from their files  loss, from the set")
    for number, (one, other) in enumerate(zip(theirs["losses"], ours["losses"], strict=True), 1):
        print(f"{number:4}  {one[0]:22.9f}  {other[0]:18.9f}")
    for name, found in (("their files", theirs), ("the set", ours)):
        print(
            f"{name}: {found['seconds']:.1f} s in all; a step {found['step']:.2f} s, of which "
            f"{found['fetch'] * 1e3:.1f} ms are the wait for its batch (medians)"
        )
    for name, taken in read_in_turns(arguments, dataset, files).items():
        print(
            f"{name}: {len(dataset)} rows to batches in {taken:.2f} s, taking turns (median of 5)"
        )
    same = theirs["losses"] == ours["losses"] and theirs["held_out"] == ours["held_out"]
    count = sum(map(len, theirs["losses"])) + len(theirs["held_out"])
    print(f"{count} losses and rates: {'all the same' if same else 'THEY DIFFER'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
