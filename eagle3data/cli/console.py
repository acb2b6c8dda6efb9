"""What every command prints with: two consoles, progress, JSON, columns that fit the window."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from eagle3data.schema.words import duration, rate

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_SECONDS_BETWEEN_LINES = 5.0
_LEAST_ROOM = 22
"""Columns that a value needs beside its name."""
_STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Controls, escapes among them, and what turns the direction of writing round."""


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


def print_pairs(pairs: Sequence[tuple[str, str | Text]]) -> None:
    """Names and values in two aligned columns.

    On a terminal values wrap at words, below themselves; where the window leaves them little room
    each stands below its name. Elsewhere a pair is a line, whatever its length.
    """
    column = max(len(name) for name, _ in pairs) + 2
    room = out.width - column
    if out.is_terminal and room < _LEAST_ROOM:
        for name, value in pairs:
            out.print(Text(name, style="bold"))
            _print_wrapped(value, "  ", "  ")
        return
    for name, value in pairs:
        _print_wrapped(value, Text(f"{name:<{column}}", style="bold"), " " * column)


def print_text(text: Text) -> None:
    """A text with its own line breaks; on a terminal it wraps at words."""
    out.print(text, soft_wrap=not out.is_terminal, overflow="fold")


def say(text: str) -> None:
    """A sentence or a paragraph on stdout; on a terminal it wraps at words."""
    _say(text, out)


def tell(text: str) -> None:
    """The same on stderr: what is no result, such as notices, warnings and errors."""
    _say(text, err)


def _say(text: str, to: Console) -> None:
    to.print(Text(visible(text, keep="\n")), soft_wrap=not to.is_terminal)


def print_lines(lines: Iterable[str], indent: str = "") -> None:
    """A line each; on a terminal they wrap at words, and go on a little further in."""
    for line in lines:
        _print_wrapped(line, indent, f"{indent}  ")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = ()
) -> None:
    """A table whose cells stand to the right, but for those of the columns `left`.

    A terminal that is too narrow for it gets each row as a record: its first cell, then the others
    with their columns' names.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    if out.is_terminal and sum(widths) + 2 * (len(widths) - 1) > out.width:
        _print_records(columns, rows)
        return
    for number, row in enumerate([columns, *rows]):
        cells = [
            cell + " " * (width - cell_len(cell))
            if name in left
            else " " * (width - cell_len(cell)) + cell
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        out.print(Text("  ".join(cells).rstrip(), style="" if number else "bold"))


def _print_records(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    names = max(map(len, columns[1:]))
    for row in rows:
        out.print(Text(f"{columns[0]} {row[0]}", style="bold"))
        for name, cell in zip(columns[1:], row[1:], strict=True):
            _print_wrapped(cell, f"  {name:<{names}}  ", " " * (names + 4))


def _print_wrapped(value: str | Text, first: str | Text, others: str) -> None:
    text = value if isinstance(value, Text) else Text(visible(value))
    room = max(out.width - cell_len(others), 1)
    lines = text.wrap(out, room, overflow="fold") if out.is_terminal else [text]
    for number, line in enumerate(lines or [Text()]):
        line.rstrip()
        out.print(Text.assemble(others if number else first, line))


def visible(text: str, keep: str = "") -> str:
    """Text of a data set as it may be printed: what would steer the terminal is spelled out.

    Args:
        text: of anyone: a source, an id, a reason.
        keep: characters that stay as they are, such as line feeds.
    """
    return _STEERING.sub(
        lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text
    )
