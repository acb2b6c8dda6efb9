"""Writing a data set as another project's files: one file a sample, whole or not there.

A file gets its name once it is on the disk, so a name that is there is a whole file, and an export
that was stopped goes on with those that are not. `eagle3data.json` beside them says what they were
made from: those layouts can't, and without it files of two sets could mix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage.local import TEMPORARY, Buffer, LocalUpload, sweep_temporary
from eagle3data.storage.parallel import run_all

MARKER = "eagle3data.json"
_AHEAD = 32
"""Samples given to each thread before all are waited for."""


class ExportedSet(Protocol):
    """What an export needs of a data set; `open_dataset`'s has it."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def generation(self) -> str: ...

    @property
    def index(self) -> pa.Table: ...

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> Sample: ...

    def read_tokens(self, position: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]: ...


Progress = Callable[[int], None]
"""Called with the samples that are done."""


def begin(dataset: ExportedSet, folder: Path, layout: str, order: str = "tokens") -> None:
    """Mark the folder as this export's, and sweep what killed ones left.

    Args:
        dataset: that is exported.
        folder: to fill.
        layout: whose.
        order: how its rows follow each other.

    Raises:
        InputError: the folder holds an export of something else, or other files.
        SpaceError: the place is full.
    """
    manifest = dataset.manifest
    told = {
        "layout": layout,
        "order": order,
        "samples": len(dataset),
        "generation": dataset.generation,
        "layers": manifest.layers,
        "norm_state": str(manifest.capture.norm_state),
        "dtype": str(manifest.storage.dtype),
        "target": manifest.target.name,
    }
    if not len(dataset):
        raise InputError("the data set holds no sample, so there is nothing to export.")
    marker = folder / MARKER
    if marker.exists():
        if json.loads(marker.read_bytes()) != told:
            raise InputError(
                f"{folder} holds an export of another data set, or of this one before it grew "
                f"({MARKER} there says which). Export to an empty folder."
            )
    elif folder.exists() and any(entry.name != TEMPORARY for entry in folder.iterdir()):
        raise InputError(f"{folder} holds files that no export left. Export to an empty folder.")
    else:
        put(folder, MARKER, [json.dumps(told, indent=2).encode()])
    sweep_temporary(folder)


def write_missing(
    dataset: ExportedSet,
    folder: Path,
    place_of: Callable[[int], str],
    encoded: Callable[[Sample], Sequence[Buffer]],
    *,
    threads: int,
    progress: Progress | None,
) -> int:
    """Write the file of every sample that has none yet.

    Args:
        dataset: read sample by sample.
        folder: of the export.
        place_of: position to the file's place in it.
        encoded: a sample to the bytes of its file.
        threads: that read, encode and write.
        progress: told as samples are done.

    Returns:
        Files written now.

    Raises:
        CorruptionError: a sample of the set is damaged.
        SpaceError, InputError: the place is full or can't be written.
    """
    missing = [row for row in range(len(dataset)) if not (folder / place_of(row)).exists()]
    done = len(dataset) - len(missing)
    with ThreadPoolExecutor(threads, "eagle3data-export") as pool:
        for start in range(0, len(missing), threads * _AHEAD):
            rows = missing[start : start + threads * _AHEAD]
            run_all(
                pool, [partial(_write, dataset, folder, place_of, encoded, row) for row in rows]
            )
            done += len(rows)
            if progress is not None:
                progress(done)
    temporary = folder / TEMPORARY
    sweep_temporary(folder)
    if temporary.is_dir() and not any(temporary.iterdir()):
        temporary.rmdir()
    return len(missing)


def put(folder: Path, place: str, parts: Sequence[Buffer]) -> None:
    """Write one file whole.

    Raises:
        AlreadyExistsError: another export wrote it meanwhile.
        SpaceError, InputError: the place is full or can't be written.
    """
    upload = LocalUpload(folder, place, str(folder))
    try:
        upload.write(parts)
        upload.commit()
    finally:
        upload.abort()


def buffer_of(array: npt.NDArray[Any]) -> memoryview:
    """An array's bytes, without a copy where they lie together."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _write(
    dataset: ExportedSet,
    folder: Path,
    place_of: Callable[[int], str],
    encoded: Callable[[Sample], Sequence[Buffer]],
    row: int,
) -> None:
    put(folder, place_of(row), encoded(dataset[row]))
