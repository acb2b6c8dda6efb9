"""Files of a source: listed by number, and read by ranges."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.schema.errors import InputError, SampleError
from eagle3data.storage.mapped import LocalObject

_DIGITS = re.compile(r"(\d+)")


def by_number(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names by the numbers in them: `data_9` before `data_10`."""
    return [
        (0, int(part), part) if part.isdigit() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    ]


def files_below(path: Path, wanted: Callable[[str], bool]) -> list[str]:
    """Files under `path` whose names are wanted, relative to it, by the numbers in them.

    A single file is listed under its own name.

    Raises:
        InputError: there is nothing at `path`, or a folder can't be listed.
    """
    if path.is_file():
        return [path.name] if wanted(path.name) else []
    if not path.is_dir():
        raise InputError(f"{path} does not exist. Name the folder with the other project's files.")
    found: list[str] = []
    for folder, _, names in os.walk(path, onerror=_unlistable):
        inside = os.path.relpath(folder, path)
        found += [os.path.normpath(os.path.join(inside, name)) for name in names if wanted(name)]
    return sorted(found, key=by_number)


def root_of(path: Path) -> Path:
    """The folder that the places of `files_below` are relative to."""
    return path.parent if path.is_file() else path


def read_range(file: LocalObject, offset: int, count: int, place: str) -> npt.NDArray[np.uint8]:
    """`count` bytes of a file from `offset`; a view of the file itself where it can be mapped.

    Raises:
        SampleError: the file can't be read, or ends before.
    """
    try:
        found = file.read(offset, offset + count)
    except OSError as error:
        raise unreadable(error, place) from None
    if len(found) < count:
        name, end = Path(file.path).name, offset + len(found)
        raise refusals.damaged(place, f"{name} ends at byte {end}", f"{offset + count} bytes")
    return found


def open_file(path: Path, place: str) -> LocalObject:
    """Open a file of the source.

    Raises:
        SampleError: it is missing or can't be read.
    """
    try:
        return LocalObject(str(path))
    except OSError as error:
        raise unreadable(error, place) from None


def unreadable(error: OSError, place: str) -> SampleError:
    """What the system says of a file, as the refusal of its sample."""
    if isinstance(error, FileNotFoundError):
        return refusals.missing(place, "a file of this name")
    return refusals.damaged(place, f"reading failed: {error.strerror or error}", "a whole file")


def _unlistable(error: OSError) -> None:
    raise InputError(f"{error.filename} can't be listed: {error.strerror}. Check its permissions.")
