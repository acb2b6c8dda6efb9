"""The training loop: packs in, teacher, unrolled draft, loss, optimiser step; in that order.

A run lives in a folder: checkpoints, `metrics.jsonl`, `summary.json`. Starting a run in a
folder that holds one continues it, and its curve is the one of a run never interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from eagle3data.readers.batch import Batch
from eagle3data.storage.local import exclusive_lock
from eagle3data.trainer import checkpoint
from eagle3data.trainer.checkpoint import Checkpoint
from eagle3data.trainer.config import OptimizerSection, TrainConfig
from eagle3data.trainer.files import write_json
from eagle3data.trainer.inputs import Inputs, gather
from eagle3data.trainer.interruption import Interruption
from eagle3data.trainer.learner import Learner, NonFiniteError
from eagle3data.trainer.metrics import DEFINITIONS
from eagle3data.trainer.records import MetricsFile

SUMMARY = "summary.json"
LOCK = "writer.lock"
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        summary: what `summary.json` holds.
        interrupted: a signal asked it to stop; its last checkpoint is where it stopped.
    """

    summary: dict[str, Any]
    interrupted: bool


def train(
    url: str,
    model: str,
    out: str | Path,
    config: TrainConfig,
    *,
    revision: str | None = None,
    report: Callable[[Record], None] = lambda _: None,
) -> Outcome:
    """Train a draft, or go on with the training in `out`.

    Args:
        url: data set.
        model: the target, Hugging Face folder or id.
        out: the run's folder.
        config: its settings.
        revision: hub revision of the target.
        report: called with every record that goes into `metrics.jsonl`.

    Raises:
        InputError: data, model and settings that don't belong together.
        MismatchError: `out` holds another run.
        NonFiniteError: the loss or a gradient is not finite; names step and samples.
    """
    run = Run(gather(url, model, config, revision), Path(out), report)
    with exclusive_lock(Path(out) / LOCK, str(out)), Interruption() as interruption:
        run.start_or_resume()
        while run.step < run.total_steps and not interruption.requested:
            for packs in groups(run.inputs.loader, config.train.accumulation):
                run.train_step(packs)
                done = run.step == run.total_steps
                best = run.evaluate() if done or run.step % config.train.eval_every == 0 else False
                stopping = done or interruption.requested
                if best or stopping or run.step % config.train.save_every == 0:
                    run.save(best=best)
                if stopping:
                    break
        return Outcome(summary=run.summarise(), interrupted=run.step < run.total_steps)


class Run:
    """The state of a run between steps, and what a step does to it."""

    def __init__(self, inputs: Inputs, out: Path, report: Callable[[Record], None]) -> None:
        """Prepare a run; nothing is written yet."""
        self.inputs = inputs
        self.out = out
        self.config = inputs.config
        self.learner = Learner(inputs.subject, self.config)
        self.step = 0
        self.total_steps = count_steps(inputs)
        # What a checkpoint carries besides the state of the parts.
        self.history: dict[str, Any] = {"start": None, "best": None, "end": None, "tokens": 0}
        self.records = MetricsFile(out, report)

    def start_or_resume(self) -> None:
        """Take up the last checkpoint in the folder, or measure the start of a new run."""
        saved = checkpoint.load_last(self.out)
        if saved is None:
            self.records.begin({"kind": "definitions", **DEFINITIONS})
            self.evaluate()
            return
        saved.check_identity(self.inputs.identity, self.out)
        self.inputs.draft.load_state_dict(saved.draft.parameters)
        self.learner.optimizer.load_state_dict(saved.optimizer)
        self.inputs.loader.load_state_dict(saved.loader)
        self.step, self.history = saved.step, saved.history
        self.records.resume(self.step)
        checkpoint.set_random_states(saved.random)

    def train_step(self, packs: list[Batch]) -> None:
        """One step of the optimiser over one or more packs.

        Raises:
            NonFiniteError: the loss or the gradient is not finite.
        """
        began = time.monotonic()
        rate = learning_rate(self.config.optimizer, self.step, self.total_steps)
        try:
            learned = self.learner.learn(packs, rate)
        except NonFiniteError as error:
            raise NonFiniteError(
                f"step {self.step + 1}: {error}; look at them with `eagle3data validate "
                f"{self.inputs.dataset.url}`, or lower optimizer.learning_rate. The checkpoints "
                f"in {self.out} are from before it."
            ) from None
        self.step += 1
        tokens = sum(pack.tokens for pack in packs)
        self.history["tokens"] += tokens
        self.records.write(
            {
                "kind": "train",
                "step": self.step,
                "total_steps": self.total_steps,
                "learning_rate": rate,
                "tokens": tokens,
                "seconds": time.monotonic() - began,
                **learned,
            }
        )

    def evaluate(self) -> bool:
        """Measure the held-out split; whether the draft is the best so far."""
        loader = self.inputs.held_out()
        if loader is None:
            return False
        rates = self.learner.measure(islice(loader, self.config.train.eval_packs))
        self.records.write({"kind": "eval", "step": self.step, **rates})
        if self.step == 0:
            self.history["start"] = rates
        self.history["end"] = rates
        best = self.history["best"]
        if best is None or rates["loss"] < best["loss"]:
            self.history["best"] = {"step": self.step, "loss": rates["loss"]}
            return True
        return False

    def save(self, *, best: bool) -> None:
        """Write a checkpoint of the run as it stands."""
        state = Checkpoint(
            step=self.step,
            draft=self.inputs.saved_draft(),
            optimizer=self.learner.optimizer.state_dict(),
            random=checkpoint.random_states(),
            loader=self.inputs.loader.state_dict(),
            identity=self.inputs.identity,
            history=self.history,
        )
        checkpoint.save(self.out, state, best=best)

    def summarise(self) -> dict[str, Any]:
        """Write and return `summary.json`: the run in a few numbers, with their definitions."""
        parameters = sum(p.numel() for p in self.inputs.draft.parameters())
        start, end = self.history["start"], self.history["end"]
        summary = {
            "steps": self.step,
            "total_steps": self.total_steps,
            "tokens": self.history["tokens"],
            "parameters": parameters,
            "draft_vocab_size": len(self.inputs.vocabulary.d2t),
            "best": self.history["best"],
            "held_out": {"start": start, "end": end},
            "commonest_token_accuracy": end["commonest_token_accuracy"] if end else None,
            "definitions": DEFINITIONS,
        }
        write_json(self.out / SUMMARY, summary)
        return summary


def groups(packs: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Packs of one optimiser step each; an epoch's last group may be smaller."""
    iterator = iter(packs)
    while group := list(islice(iterator, size)):
        yield group


def count_steps(inputs: Inputs) -> int:
    """Optimiser steps of the whole run."""
    settings, loader = inputs.config.train, inputs.loader
    if settings.max_steps is not None:
        return settings.max_steps
    total = 0
    for epoch in range(settings.epochs):
        loader.set_epoch(epoch)  # how the samples pack, and so how many steps, differs by epoch
        total += math.ceil(len(loader) / settings.accumulation)
    loader.set_epoch(0)
    return total


def learning_rate(section: OptimizerSection, step: int, total_steps: int) -> float:
    """The rate of the step after `step` steps: a linear warm-up, then a fall to zero."""
    warmup = math.ceil(section.warmup_share * total_steps)
    if step < warmup:
        return section.learning_rate * (step + 1) / warmup
    left = 1.0 - (step - warmup) / max(1, total_steps - warmup)
    if section.schedule == "cosine":
        left = 0.5 * (1.0 - math.cos(math.pi * left))
    return section.learning_rate * left
