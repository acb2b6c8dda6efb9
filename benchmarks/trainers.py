"""Our trainer against speculators' own: same data, steps, batch tokens and shape; several seeds.

    python -m benchmarks.trainers STATES --model MODEL --folder DIR [--questions unseen.jsonl] \\
        [-- --max-new-tokens 64]

Both drafts are measured by the same code on the same held-out samples: KL of each of three steps,
against the target restricted to the draft vocabulary, and how many tokens a greedy server would
keep. With `--questions` a real vLLM drafts with each; what follows `--` goes to `eagle3data
evaluate`. Needs speculators (docs/speculators.md). STATES is a data set with a split `eval`.
Products are in bfloat16 where there is an accelerator, in float32 elsewhere.

Two pairs have the same recipe: AdamW, and what speculators does by default (Muon for matrices, a
frozen head, KL over three steps). `defaults-ours` is what our trainer does on a GPU when nothing is
set (Muon at 1e-3, a head that begins as the target's), also where there is none; `scratch-ours` is
that with AdamW at 1e-4 and a fresh head, as EAGLE-3's authors trained.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.float32_muon import use_float32
from eagle3data.interop.training_order import TrainingOrder
from eagle3data.interop.write_speculators import write
from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.schema.machine import has_bfloat16_units

SHAPE = ["model.norm_before_residual=true", "model.norm_output=true"]
_ALIKE = [
    "model.lm_head=frozen",
    "optimizer.learning_rate=1.0e-3",
    "optimizer.schedule=linear",
    "optimizer.warmup_share=0.01",
    "optimizer.max_grad_norm=1.0",
    "train.loss=kl",
    "train.ttt_steps=3",
    "train.step_decay=1.0",
]
_ADAMW = ["optimizer.name=adamw", "optimizer.betas=[0.9, 0.999]", "optimizer.weight_decay=0.01"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "adamw-speculators": ("speculators", ["--optimizer", "adamw"]),
    "adamw-ours": ("ours", [*_ALIKE, *_ADAMW]),
    "muon-speculators": ("speculators", []),
    "muon-ours": ("ours", [*_ALIKE, "optimizer.name=muon", "optimizer.weight_decay=0.1"]),
    "defaults-ours": ("ours", ["optimizer.name=muon"]),
    "scratch-ours": (
        "ours",
        ["model.lm_head=scratch", "optimizer.name=adamw", "optimizer.learning_rate=1.0e-4"],
    ),
}
MEASURE = [
    "train.loss=kl",
    "train.ttt_steps=3",
    "train.step_decay=1.0",
    "train.autocast=float32",
    "train.attention=plain",
    "train.compile=false",
]
_measuring = threading.Lock()


def prepare(dataset: Dataset, folder: Path) -> float:
    """Write their rows; the share of them that they train on."""
    write(dataset, folder, states=False)
    ratio = TrainingOrder(dataset).train_ratio
    if ratio is None:
        sys.exit(f"{dataset.url} holds nothing out: prepare it with --eval-fraction.")
    return ratio


def train_theirs(
    arguments: argparse.Namespace, dataset: Dataset, out: Path, seed: int, words: list[str]
) -> dict[str, Any]:
    """A run of their trainer; where its draft is and what it took."""
    out.mkdir(parents=True, exist_ok=True)
    metrics = out / "metrics.jsonl"
    settings = {
        "verifier-name-or-path": arguments.model,
        "data-path": arguments.folder / "rows",
        "train-data-ratio": arguments.ratio,
        "hidden-states-backend": "eagle3data",
        "eagle3data-url": dataset.url,
        "on-missing": "raise",
        "draft-vocab-size": arguments.draft_vocab,
        "total-seq-len": arguments.budget,
        "hidden-states-dtype": precision(),
        "save-path": out / "checkpoints",
        "log-dir": out / "logs",
        "max-steps": arguments.steps,
        "seed": seed,
    }
    layers = map(str, sorted(dataset.manifest.layers)[:-1])
    command = ["--target-layer-ids", *layers, "--no-norm-before-fc", *words]
    for name, value in settings.items():
        command += [f"--{name}", str(value)]
    # Their loop begins every epoch that it was told of, even when the steps are done.
    epochs = epochs_of(dataset, arguments)
    run("benchmarks.speculators_trainer", [metrics, *command, "--epochs", epochs], out)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    tokens = [one["profile"]["tokens_per_s"] * one["profile"]["step_ms"] / 1e3 for one in steps]
    return {
        "draft": str(max((out / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))),
        "steps": len(steps),
        "tokens": round(sum(tokens)),
        "step_seconds": statistics.median(one["profile"]["step_ms"] / 1e3 for one in steps),
        "losses": [one["train"]["loss"] for one in steps],
    }


def epochs_of(dataset: Dataset, arguments: argparse.Namespace) -> int:
    """Epochs within which their packs surely last for the steps."""
    tokens = sum(
        dataset.length(position)
        for position, split in enumerate(dataset.index["split"].to_pylist())
        if split == "train"
    )
    wanted: int = arguments.steps * arguments.budget
    return 1 + wanted // tokens


def train_ours(
    arguments: argparse.Namespace, dataset: Dataset, out: Path, seed: int, words: list[str]
) -> dict[str, Any]:
    """A run of our trainer; where its draft is and what it took."""
    settings = [
        *SHAPE,
        *words,
        f"model.draft_vocab_size={arguments.draft_vocab}",
        f"data.token_budget={arguments.budget}",
        f"train.max_steps={arguments.steps}",
        f"train.eval_every={arguments.steps}",
        f"train.autocast={precision()}",
        "train.compile=false",
        f"train.seed={seed}",
    ]
    run("benchmarks.trainers", ["--ours", dataset.url, arguments.model, out, *settings], out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line.get("kind") == "train"]
    return {
        "draft": str(out),
        "steps": len(steps),
        "tokens": sum(one["tokens"] for one in steps),
        "step_seconds": statistics.median(one["seconds"] for one in steps),
        "losses": [one["loss"] for one in steps],
    }


def run(module: str, words: list[Any], out: Path) -> None:
    """A process of its own, its output beside what it makes."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.txt").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, words)],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    if done.returncode:
        sys.exit(f"{module} failed; see {out / 'log.txt'}")


def measure(arguments: argparse.Namespace, url: str, draft: str) -> dict[str, Any]:
    """A draft's figures on the held-out samples, whoever trained it."""
    from eagle3data.trainer.config import load_config
    from eagle3data.trainer.inputs import gather
    from eagle3data.trainer.learner import Learner

    settings = [*MEASURE, f"data.token_budget={arguments.budget}", f"model.init_from={draft}"]
    config = load_config(None, settings)
    inputs = gather(url, arguments.model, config)
    held_out = inputs.held_out()
    if held_out is None:
        sys.exit(f"{url} holds nothing out")
    packs = itertools.islice(held_out, arguments.held_out_packs)
    return Learner(inputs.subject, inputs.config).measure(packs)


def precision() -> str:
    """Dtype of matrix products in training, of both trainers."""
    return "bfloat16" if torch.accelerator.is_available() else "float32"


def accepted(arguments: argparse.Namespace, draft: str) -> float:
    """Tokens that a step of vLLM yields with a draft, greedy, three tokens drafted."""
    words = ["evaluate", draft, "--model", arguments.model, "--prompts", arguments.questions]
    words += ["--dtype", precision(), "--no-compare", "--json", *arguments.evaluate]
    done = subprocess.run(
        [sys.executable, "-m", "eagle3data.cli.main", *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        sys.exit(f"evaluate failed with {draft}")
    length: float = json.loads(done.stdout)["acceptance_length"]
    return length


def table(figures: list[dict[str, Any]]) -> str:
    """Mean and range over the seeds of each run."""
    lines = [
        "| run | held-out loss | accuracy | simulated acceptance length | tokens | s a step "
        "| acceptance length, vLLM |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in RUNS:
        found = [one for one in figures if one["run"] == name]
        if found:
            columns = [
                spread([one["held_out"]["loss"] for one in found], 2),
                spread([one["held_out"]["accuracy"] for one in found], 3),
                spread([one["held_out"]["simulated_acceptance_length"] for one in found], 3),
                spread([one["tokens"] for one in found], 0),
                spread([one["step_seconds"] for one in found], 2),
            ]
            if all("accepted" in one for one in found):
                columns.append(spread([one["accepted"] for one in found], 3))
            else:
                columns.append("not measured")
            lines.append(f"| {name} | {' | '.join(columns)} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    mean, least, most = statistics.mean(values), min(values), max(values)
    return f"{mean:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def main(words: list[str]) -> None:
    """Train, measure, print."""
    if words[:1] == ["--ours"]:
        from eagle3data.trainer.config import load_config
        from eagle3data.trainer.loop import train

        if not has_bfloat16_units():
            use_float32()
        url, model, out, *settings = words[1:]
        train(url, model, out, load_config(None, settings))
        return
    arguments = parse(words)
    dataset = open_dataset(arguments.states)
    arguments.ratio = prepare(dataset, arguments.folder / "rows")
    cases = list(itertools.product(arguments.seeds, arguments.runs))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        figures = list(pool.map(lambda case: compare(arguments, dataset, *case), cases))
    print(table(figures))


def compare(
    arguments: argparse.Namespace, dataset: Dataset, seed: int, name: str
) -> dict[str, Any]:
    """One training and what its draft is worth; what was found before is not done again."""
    trainer, settings = RUNS[name]
    out = arguments.folder / f"{name}-{seed}"
    done = out / "figures.json"
    if not done.exists():
        train = {"ours": train_ours, "speculators": train_theirs}[trainer]
        began = time.perf_counter()
        made = train(arguments, dataset, out, seed, settings)
        made["seconds"] = time.perf_counter() - began
        with _measuring:
            held_out = measure(arguments, dataset.url, made["draft"])
        found = {"run": name, "seed": seed, **made, "held_out": held_out}
        done.write_text(json.dumps(found, indent=2) + "\n")
    found = json.loads(done.read_text())
    if arguments.questions and "accepted" not in found:
        found["accepted"] = accepted(arguments, found["draft"])
        done.write_text(json.dumps(found, indent=2) + "\n")
    print(name, seed, f"{found['held_out']['loss']:.3f}", found.get("accepted", ""), flush=True)
    return dict(found)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line; what follows `--` is kept for `evaluate`."""
    own, evaluate = split_words(words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("states")
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for runs and figures")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--draft-vocab", type=int, default=4096)
    parser.add_argument("--held-out-packs", type=int, help="measure on so many, not on all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--questions", type=Path, help="JSONL of prompts: let vLLM draft too")
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    found = parser.parse_args(own)
    found.evaluate = evaluate
    return found


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A program's own words, and those after `--`."""
    own = list(words)
    at = own.index("--") if "--" in own else len(own)
    return own[:at], own[at + 1 :]


if __name__ == "__main__":
    main(sys.argv[1:])
