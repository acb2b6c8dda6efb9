"""`metrics.jsonl`, one JSON object a line, the definitions first; TensorBoard beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eagle3data.schema.errors import InputError

METRICS = "metrics.jsonl"
BOARD = "tensorboard"


class MetricsFile:
    """The run's records; each is also handed to `report`."""

    def __init__(self, out: Path, report: Callable[[dict[str, Any]], None]) -> None:
        """Point at a run's folder; nothing is written yet."""
        self._path = out / METRICS
        self._report = report

    def begin(self, first: dict[str, Any]) -> None:
        """Start the file anew with its first line."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(first) + "\n")
        except OSError as error:
            raise InputError(f"{self._path} can't be written: {error.strerror}.") from None

    def resume(self, step: int) -> None:
        """Drop what was recorded after the checkpoint of `step`: those steps are run again.

        A line that a kill cut short is dropped as well.
        """
        lines = self._path.read_text().splitlines() if self._path.is_file() else []
        kept = [line for line in lines if _step(line) <= step]
        self._path.write_text("".join(f"{line}\n" for line in kept))

    def write(self, record: dict[str, Any]) -> None:
        """Append one record and hand it on."""
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self._report(record)


def read_records(out: Path) -> list[dict[str, Any]]:
    """The records of a run's folder in their order, as far as they are written; definitions first.

    A line that is being written, or that a kill cut short, is left out.

    Raises:
        InputError: there is no run in that folder.
    """
    path = out / METRICS
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(
            f"{out} holds no training run: {METRICS} can't be read ({error.strerror or error}). "
            "Expected the folder that `train --out` was given."
        ) from None
    records = (_record(line) for line in lines)
    return [record for record in records if record is not None]


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "kind" in record else None


class Board:
    """The same numbers for TensorBoard: `train/loss`, `eval/step_2/accuracy` and so on."""

    def __init__(self, out: Path, step: int, definitions: dict[str, str]) -> None:
        """Begin, or go on after `step`; what was written of later steps is hidden.

        Raises:
            InputError: the writer's package isn't installed.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise InputError(
                "train.tensorboard needs tensorboardX: pip install 'eagle3data[tensorboard]'."
            ) from None
        self._writer = SummaryWriter(str(out / BOARD), purge_step=step + 1)
        if step == 0:
            rows = (f"- **{name}**: {meaning}" for name, meaning in definitions.items())
            self._writer.add_text("definitions", "\n".join(rows), 0)

    def write(self, record: dict[str, Any]) -> None:
        """Add a record's numbers at its step."""
        for name, value in _scalars(record):
            self._writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()


def _scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if name == "steps":
            for number, step in enumerate(value):
                yield from ((f"step_{number}/{key}", rate) for key, rate in step.items())
        elif isinstance(value, int | float) and name not in {"step", "total_steps"}:
            yield name, value


def _step(line: str) -> float:
    try:
        return int(json.loads(line).get("step", 0))
    except ValueError:
        return math.inf
