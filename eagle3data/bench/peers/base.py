"""What a peer is: one way to keep samples in files and to read one into a buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from eagle3data.bench.corpus import Corpus, States

ReadSample = Callable[[int, States], None]
"""`read(position, out)` fills `out`, `[4, T, 7168]` with that sample's T."""


class Peer(ABC):
    """One way to keep samples.

    Attributes:
        name: as `--peers` calls it.
        reading: what a read of a sample is, for the tables.
        writing: what a write of the samples is, for the tables.
        checks: whether reading compares checksums.
        packages: what it needs, as (import name, distribution).
        layout: the peer whose files it reads; its own where that is its name.
    """

    name: ClassVar[str]
    reading: str
    writing: str
    checks: ClassVar[bool]
    packages: tuple[tuple[str, str], ...]
    layout: ClassVar[str]

    def available(self) -> bool:
        """Whether all it needs is installed."""
        return all(find_spec(module) is not None for module, _ in self.packages)

    def versions(self) -> dict[str, str]:
        """Version of each package it needs."""
        found = {}
        for _, distribution in self.packages:
            try:
                found[distribution] = version(distribution)
            except PackageNotFoundError:
                found[distribution] = "unknown"
        return found

    @abstractmethod
    def write(self, corpus: Corpus, folder: Path, /) -> None:
        """Write every sample below an empty folder; whether it is durable is the caller's care."""

    @abstractmethod
    def reader(self, corpus: Corpus, folder: Path, /) -> AbstractContextManager[ReadSample]:
        """Open what `layout`'s `write` wrote; nothing stays open or mapped afterwards."""
