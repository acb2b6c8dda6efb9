"""What every command prints with: two consoles, progress, JSON and aligned pairs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console

from eagle3data.schema.words import duration, rate

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_SECONDS_BETWEEN_LINES = 5.0


class Progress(Protocol):
    """Something that counts work done."""

    def advance(self, n: int, **fields: str) -> None:
        """Add `n` units; `fields` are shown beside the count."""


@contextmanager
def progress(description: str, total: int, unit: str) -> Iterator[Progress]:
    """Show progress on stderr: a bar on a terminal, a line every few seconds elsewhere."""
    if err.is_terminal:
        yield from _bar(description, total, unit)
    else:
        lines = _Lines(description, total, unit)
        yield lines
        lines.finish()


def _bar(description: str, total: int, unit: str) -> Iterator[Progress]:
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}} of {{task.total:,.0f}} {unit}"),
        TextColumn(f"{{task.fields[speed]}} {unit}/s"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[extra]}"),
    )
    with RichProgress(*columns, console=err) as bar:
        task = bar.add_task(description, total=total, speed="-", extra="")

        class _Bar:
            def advance(self, n: int, **fields: str) -> None:
                bar.advance(task, n)
                state = bar.tasks[0]
                speed = rate(state.completed / max(state.elapsed or 0.0, 1e-9))
                extra = "  ".join(f"{key} {value}" for key, value in fields.items())
                bar.update(task, speed=speed, extra=extra)

        yield _Bar()


class _Lines:
    def __init__(self, description: str, total: int, unit: str) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._begin = self._shown = time.monotonic()
        self._done, self._told = 0, -1
        self._fields: dict[str, str] = {}

    def advance(self, n: int, **fields: str) -> None:
        self._done += n
        self._fields = fields
        if time.monotonic() - self._shown >= _SECONDS_BETWEEN_LINES:
            self.show()

    def finish(self) -> None:
        """Show the last state unless it was shown already."""
        if self._done != self._told:
            self.show()

    def show(self) -> None:
        """Print a line."""
        self._told = self._done
        self._shown = time.monotonic()
        speed = self._done / max(self._shown - self._begin, 1e-9)
        left = duration((self._total - self._done) / speed) if speed else "unknown"
        extra = "".join(f", {key} {value}" for key, value in self._fields.items())
        err.print(
            f"{self._description}: {self._done:,} of {self._total:,} {self._unit}, "
            f"{rate(speed)} {self._unit}/s, {left} left{extra}"
        )


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    out.print(json.dumps(value, indent=2), markup=False)


def print_json_line(value: Any) -> None:
    """One JSON document on one line of stdout."""
    out.print(json.dumps(value), markup=False)


def print_pairs(pairs: list[tuple[str, str]]) -> None:
    """Names and values in two aligned columns."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        out.print(f"[bold]{name:<{width}}[/bold]  ", end="")
        out.print(value, markup=False)
