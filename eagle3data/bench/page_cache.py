"""Files in and out of the page cache, and the plain sequential read of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_BUFFER_BYTES = 8 << 20


class PlainReader:
    """Reads whole files front to back into one reused buffer: what the medium gives."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)  # written once here, so every page is touched

    def read(self, files: Iterable[Path]) -> int:
        """Read files in the order given; returns the bytes."""
        total = 0
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            try:
                while count := os.readv(descriptor, [self._buffer]):
                    total += count
            finally:
                os.close(descriptor)
        return total


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, the same order each time."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def drop(files: Iterable[Path]) -> None:
    """Write files back and take exactly them out of the page cache.

    Pages that a process has mapped stay, so nothing may hold the files mapped.
    """
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def sync_below(folder: Path) -> None:
    """Make everything below a folder durable: every file, then every folder."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in [*files_below(folder), *folders]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
