"""What a loader is to its benchmark: a layout of samples, and epochs of batches from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from eagle3data.bench.corpus import Corpus

BUDGET = 8192
"""Tokens of a packed batch."""

Epoch = Callable[[], Iterable[Any]]
"""One epoch's batches, the same each time it is called."""
Document = tuple[npt.NDArray[Any], Sequence[npt.NDArray[np.float32]]]
"""One sample as it was delivered: ids `[T]`, and `[T, 7168]` of each layer."""


class LoaderPeer(ABC):
    """One way to turn samples into batches for a training step.

    Attributes:
        name: as `--peers` calls it.
        title: what it is, for the tables.
        checks: whether it compares checksums.
        packs: whether it packs samples to `BUDGET` tokens; else a batch is a sample.
        packages: what it needs, as (import name, distribution).
        layout: the peer whose files it reads; its own where that is its name.
        keeps_files: whether files stay mapped as long as it is open, so that a cold run has to
            open it anew.
        counts: how many workers (threads of ours, processes of others) it is run with; None is
            its own default.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    checks: ClassVar[bool]
    packs: ClassVar[bool]
    packages: ClassVar[tuple[tuple[str, str], ...]]
    layout: ClassVar[str]
    keeps_files: ClassVar[bool] = False
    counts: ClassVar[tuple[int | None, ...]] = (1, 2)

    def available(self) -> bool:
        """Whether all it needs is installed."""
        return all(find_spec(module) is not None for module, _ in self.packages)

    def versions(self) -> str:
        """Version of each package it needs."""
        found = []
        for _, distribution in self.packages:
            try:
                found.append(f"{distribution} {version(distribution)}")
            except PackageNotFoundError:
                found.append(f"{distribution} unknown")
        return ", ".join(found)

    def case(self, workers: int | None) -> str:
        """Its name in the tables, with so many workers."""
        what = "thread" if self.name == "eagle3data" else "worker"
        if workers is None:
            return f"{self.title}, its defaults"
        return f"{self.title}, {workers} {what}{'s' if workers > 1 else ''}"

    @abstractmethod
    def write(self, corpus: Corpus, folder: Path, /) -> None:
        """Write every sample below an empty folder."""

    @abstractmethod
    def opened(
        self, corpus: Corpus, folder: Path, workers: int | None, /
    ) -> AbstractContextManager[Epoch]:
        """Open what `layout`'s `write` wrote; nothing runs or stays open afterwards."""

    @abstractmethod
    def documents(self, batch: Any, /) -> list[Document]:
        """The samples of a batch, as they were delivered."""

    @abstractmethod
    def tokens(self, batch: Any, /) -> int:
        """Tokens of the samples in a batch."""
