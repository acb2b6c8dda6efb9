"""The training loop: packs in, teacher, unrolled draft, loss, optimiser step; in that order.

A run lives in a folder: checkpoints, `metrics.jsonl`, `summary.json`. Starting a run in a
folder that holds one continues it, and its curve is the one of a run never interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from eagle3data.readers.batch import Batch
from eagle3data.storage.local import exclusive_lock
from eagle3data.trainer import checkpoint
from eagle3data.trainer.alignment import require_aligned
from eagle3data.trainer.checkpoint import Checkpoint
from eagle3data.trainer.config import TrainConfig
from eagle3data.trainer.files import write_json
from eagle3data.trainer.inputs import Inputs, choose_device, gather
from eagle3data.trainer.interruption import Interruption
from eagle3data.trainer.learner import Learner, NonFiniteError
from eagle3data.trainer.metrics import DEFINITIONS
from eagle3data.trainer.optim import learning_rate
from eagle3data.trainer.parallel import World, processes
from eagle3data.trainer.records import Board, MetricsFile

SUMMARY = "summary.json"
LOCK = "writer.lock"
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        summary: what `summary.json` holds.
        interrupted: a signal asked it to stop; its last checkpoint is where it stopped.
        is_first: this is the process, of several, that reports.
    """

    summary: dict[str, Any]
    interrupted: bool
    is_first: bool = True


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
    device, _ = choose_device(config.train.device, config.train.autocast)
    with processes(config.train.parallel, device) as world:
        run = Run(gather(url, model, config, revision, world.device), Path(out), report, world)
        alone = exclusive_lock(Path(out) / LOCK, str(out)) if world.is_first else nullcontext()
        with alone, closing(run), Interruption() as interruption:
            run.start_or_resume()
            stopping = run.step == run.total_steps or world.any(interruption.requested)
            while not stopping:
                asked = time.monotonic()
                for packs in groups(run.inputs.loader, config.train.accumulation):
                    run.train_step(packs, waited=time.monotonic() - asked)
                    done = run.step == run.total_steps
                    best = (done or run.is_due(config.train.eval_every)) and run.evaluate()
                    stopping = done or world.any(interruption.requested)
                    if best or stopping or run.is_due(config.train.save_every):
                        run.save(best=best)
                    if stopping:
                        break
                    asked = time.monotonic()
            return Outcome(
                summary=run.summarise(),
                interrupted=run.step < run.total_steps,
                is_first=world.is_first,
            )


class Run:
    """The state of a run between steps, and what a step does to it."""

    def __init__(
        self,
        inputs: Inputs,
        out: Path,
        report: Callable[[Record], None],
        world: World | None = None,
    ) -> None:
        """Prepare a run; nothing is written yet.

        Args:
            inputs: what it works on.
            out: its folder.
            report: called with every record.
            world: the processes that run it together; none for this one alone.
        """
        self.inputs, self.out = inputs, out
        self.world = world or World(device=inputs.device)
        self.config = inputs.config
        self.learner = Learner(inputs.subject, self.config, world=self.world)
        self.step = 0
        self.total_steps = count_steps(inputs)
        # What a checkpoint carries besides the state of the parts.
        self.history: dict[str, Any] = {"start": None, "best": None, "end": None, "tokens": 0}
        self.records = MetricsFile(out, report) if self.world.is_first else None
        self.board: Board | None = None

    def is_due(self, every: int) -> bool:
        """Whether something that is done every so many steps is to be done after this one."""
        return self.step % every == 0

    def start_or_resume(self) -> None:
        """Take up the last checkpoint in the folder, or measure the start of a new run."""
        saved = self._load()
        if saved is None:
            each = [replace(self.inputs, dataset=one) for one in self.inputs.sets]
            found = self.world.from_first(lambda: [require_aligned(one) for one in each])
            if self.records:
                self.records.begin({"kind": "definitions", **DEFINITIONS})
                for reading in found:
                    self.records.write(reading)
            self._open_board()
            self.evaluate()
            return
        self.inputs.loader.load_state_dict(saved["loader"])
        self.step, self.history = saved["step"], saved["history"]
        # Counted anew: another number of processes packs what is left into other steps.
        self.total_steps = count_steps(self.inputs, self.step)
        if self.records:
            self.records.resume(self.step)
        self._open_board()
        checkpoint.set_random_states(saved["random"])

    def _open_board(self) -> None:
        if self.records and self.config.train.tensorboard:
            self.board = Board(self.out, self.step, DEFINITIONS)

    def _load(self) -> dict[str, Any] | None:
        """Give the learner the last checkpoint's parameters; what else was in it, on every rank."""
        tensors: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

        def read() -> dict[str, Any] | None:
            nonlocal tensors
            saved = checkpoint.load_last(self.out)
            if saved is None:
                return None
            saved.check_identity(self.inputs.identity, self.out)
            tensors = saved.draft.parameters, saved.optimizer
            return {name: getattr(saved, name) for name in ("step", "loader", "history", "random")}

        saved = self.world.from_first(read)
        if saved is not None:
            self.learner.load(*tensors)
        return saved

    def train_step(self, packs: list[Batch], *, waited: float = 0.0) -> None:
        """One step of the optimiser over one or more packs.

        Args:
            packs: on any device.
            waited: seconds that they were waited for, to be recorded.

        Raises:
            NonFiniteError: the loss or the gradient is not finite.
        """
        began = time.monotonic()
        rate = learning_rate(self.config.optimizer, self.step, self.total_steps)
        try:
            learned = self.learner.learn(packs, rate)
        except NonFiniteError as error:
            raise NonFiniteError(
                f"step {self.step + 1}: {error}; look at them with "
                f"{' or '.join(f'`eagle3data validate {one.url}`' for one in self.inputs.sets)}, "
                f"or lower optimizer.learning_rate. The checkpoints in {self.out} are from before "
                "it."
            ) from None
        self.step += 1
        self.history["tokens"] += learned["tokens"]
        self._record(
            {
                "kind": "train",
                "step": self.step,
                "total_steps": self.total_steps,
                "learning_rate": rate,
                "seconds": time.monotonic() - began,
                "waited": waited,
                **learned,
            }
        )

    def evaluate(self) -> bool:
        """Measure the held-out split; whether the draft is the best so far."""
        loader = self.inputs.held_out()
        if loader is None:
            return False
        packs = self.config.train.eval_packs
        each = None if packs is None else math.ceil(packs / self.world.size)
        rates = self.learner.measure(islice(loader, each))
        self._record({"kind": "eval", "step": self.step, **rates})
        if self.step == 0:
            self.history["start"] = rates
        self.history["end"] = rates
        best = self.history["best"]
        if best is None or rates["loss"] < best["loss"]:
            self.history["best"] = {"step": self.step, "loss": rates["loss"]}
            return True
        return False

    def _record(self, record: Record) -> None:
        if self.records:
            self.records.write(record)
        if self.board:
            self.board.write(record)

    def save(self, *, best: bool) -> None:
        """Write a checkpoint of the run as it stands."""
        parameters, optimizer = self.learner.state()

        def write() -> None:
            state = Checkpoint(
                step=self.step,
                draft=self.inputs.saved_draft(parameters),
                optimizer=optimizer,
                random=checkpoint.random_states(),
                loader=self.inputs.loader.state_dict(),
                identity=self.inputs.identity,
                history=self.history,
            )
            checkpoint.save(self.out, state, best=best)

        self.world.from_first(write)

    def close(self) -> None:
        """Have everything written that is still on its way."""
        if self.board:
            self.board.close()

    def summarise(self) -> dict[str, Any]:
        """Write and return `summary.json`: the run in a few numbers, with their definitions."""
        parameters = sum(p.numel() for p in self.inputs.draft.parameters())  # of shards: whole
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
        self.world.from_first(lambda: write_json(self.out / SUMMARY, summary))
        return summary


def groups(packs: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Packs of one optimiser step each; an epoch's last group may be smaller."""
    iterator = iter(packs)
    while group := list(islice(iterator, size)):
        yield group


def count_steps(inputs: Inputs, done: int = 0) -> int:
    """Optimiser steps of the whole run, `done` of them before where the loader stands."""
    settings, loader = inputs.config.train, inputs.loader
    if settings.max_steps is not None:
        return settings.max_steps
    here = loader.state_dict()
    left: int = len(loader) - math.ceil(here["consumed"] / loader.world_size)
    total = done + math.ceil(left / settings.accumulation)
    for epoch in range(loader.epoch + 1, settings.epochs):
        loader.set_epoch(epoch)  # how the samples pack, and so how many steps, differs by epoch
        total += math.ceil(len(loader) / settings.accumulation)
    loader.load_state_dict(here)
    return total
