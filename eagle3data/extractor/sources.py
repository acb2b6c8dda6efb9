"""Rows of source files: JSONL or Parquet, one at a time, each with the place it came from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec

from eagle3data.schema.errors import InputError

_PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """One row.

    Attributes:
        file: the source as the caller named it.
        line: its line in a JSONL file, its row in a Parquet file, from 1.
        value: the row, or None where it could not be read.
        problem: why it could not be read.
        size: bytes of the file that it takes, roughly for Parquet.
    """

    file: str
    line: int
    value: dict[str, Any] | None
    problem: str = ""
    size: int = 0

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def read_rows(sources: Sequence[str]) -> Iterator[SourceRow]:
    """All rows of the sources, in order; blank lines are skipped.

    Raises:
        InputError: a source that can't be read at all: missing, a folder, damaged Parquet, or one
            JSON array instead of lines.
    """
    for source in sources:
        with _opened(source) as file:
            magic = file.read(len(_PARQUET_MAGIC))
            file.seek(0)
            if magic == _PARQUET_MAGIC:
                yield from _parquet_rows(source, file)
            else:
                yield from _json_rows(source, file)


def total_bytes(sources: Sequence[str]) -> int:
    """Bytes of all sources together.

    Raises:
        InputError: a source that can't be opened.
    """
    total = 0
    for source in sources:
        with _opened(source) as file:
            total += file.seek(0, os.SEEK_END)
    return total


def scalars(row: dict[str, Any], without: Sequence[str]) -> dict[str, str]:
    """A row's plain values (text, numbers, truth values) as text, but for the named columns."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in row.items()
        if key not in without and isinstance(value, str | int | float | bool)
    }


class RejectsFile:
    """Rows that could not be used: one JSON object a line with `source`, `line` and `reason`.

    It gets its name when it is finished; a run without rejects leaves an empty one, so that
    an older run's never stands for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reasons: list[str] = []
        self._lines: list[str] = []

    @classmethod
    def beside(cls, out: str | Path) -> RejectsFile:
        """The rejects file of an output: `prompts.arrow` has `prompts.rejects.jsonl`."""
        return cls(Path(out).with_suffix(".rejects.jsonl"))

    def add(self, row: SourceRow, reason: str) -> None:
        """Note a row and why."""
        self.reasons.append(reason)
        entry = {"source": row.file, "line": row.line, "reason": reason}
        self._lines.append(json.dumps(entry, ensure_ascii=False) + "\n")

    def finish(self) -> None:
        """Write the file.

        Raises:
            InputError: it can't be written.
        """
        write_text(self.path, "".join(self._lines))


def output_file(out: str | Path, sources: Sequence[str]) -> Path:
    """The local path of an output, once it is sure that writing it destroys no source.

    Raises:
        InputError: a URL, a folder, no name, or (with its rejects file) one of the sources.
    """
    if not str(out):
        raise InputError("--out is empty; name the file to write.")
    if "://" in str(out):
        raise InputError(f"--out {out}: this file is written locally; name a path, not a URL.")
    path = Path(out).expanduser()
    if path.is_dir():
        raise InputError(f"--out {out} is a folder; name the file to write in it.")
    for source in sources:
        for written in (path, RejectsFile.beside(path).path):
            if Path(source).expanduser().resolve() == written.resolve():
                raise InputError(
                    f"{source} is a source and would be overwritten by {written}. Choose another "
                    "--out."
                )
    return path


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step.

    Raises:
        InputError: it can't be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path} can't be written: {error}") from error
    finally:
        if temporary.exists():
            temporary.unlink()


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    try:
        with fsspec.open(source, "rb") as file:
            yield file
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{source} can't be read: {error}") from error


def _json_rows(source: str, file: IO[bytes]) -> Iterator[SourceRow]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        if number == 1 and line.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK")):
            raise InputError(f"{source} is compressed; unpack it first.")
        if number == 1 and line.strip() == b"{":
            raise InputError(
                f"{source} is JSON over several lines, expected one object a line: "
                f"jq -c . {source} > rows.jsonl"
            )
        if number == 1 and line.lstrip().startswith(b"["):
            raise InputError(
                f"{source} holds one JSON array, expected one object a line: "
                f"jq -c '.[]' {source} > rows.jsonl"
            )
        value, problem = _json_object(line)
        yield SourceRow(file=source, line=number, value=value, problem=problem, size=len(line))


def _json_object(line: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        return None, "not UTF-8 text"
    except (ValueError, RecursionError) as error:
        return None, f"no JSON: {error}"
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None, "not Unicode text: half of a surrogate pair stands alone"
    if not isinstance(value, dict):
        return None, f"a JSON {type(value).__name__}, expected an object"
    return value, ""


def _parquet_rows(source: str, file: IO[bytes]) -> Iterator[SourceRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
        size = file.seek(0, os.SEEK_END) // max(parquet.metadata.num_rows, 1)
        number = 0
        for batch in parquet.iter_batches(batch_size=256):
            for value in batch.to_pylist():
                number += 1
                yield SourceRow(file=source, line=number, value=value, size=size)
    except pa.ArrowException as error:
        raise InputError(f"{source} can't be read as Parquet: {error}") from error
