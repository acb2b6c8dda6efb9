"""`metrics.jsonl`: one JSON object a line, the definitions first, then a line a step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3data.schema.errors import InputError

METRICS = "metrics.jsonl"


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


def _step(line: str) -> float:
    try:
        return int(json.loads(line).get("step", 0))
    except ValueError:
        return math.inf
