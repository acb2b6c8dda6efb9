"""Files of a run's folder, written so that none is ever half there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3data.schema.errors import InputError
from eagle3data.storage.local import unwritable


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name, sync it, and give it its name; all or nothing.

    Raises:
        InputError: the name is taken, or the place can't be written.
        SpaceError: the disk is full; nothing of the folder stays.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists already and is not empty. Name another folder.")
    temporary = path.with_name(f".{path.name}.partial")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        _sync(temporary)
        temporary.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Put a JSON file in place of the old one, atomically."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(value, indent=2) + "\n")
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
