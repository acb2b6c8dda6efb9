"""What the layouts have in common: entries, refusals by name, and the first good sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.interop.source import Entry, SourceFacts, Tokens
from eagle3data.schema.errors import InputError, SampleError
from eagle3data.schema.layers import NormState

_TRIED = 256
"""Files that are opened in search of a good one before the source is given up."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How a sample is stored; all samples of a source are stored alike.

    Attributes:
        slots: states of a token.
        dtype: of the stored states: `bfloat16`, `float16`, `float32`, or a float8 name.
        norm_state: of the last slot, where the sample says it.
    """

    slots: int
    dtype: str
    norm_state: NormState | None = None

    def __str__(self) -> str:
        norm = "" if self.norm_state is None else f", last slot {self.norm_state}-norm"
        return f"{self.slots} {self.dtype} states a token{norm}"


class Opened(Protocol):
    """A stored sample whose shapes were checked."""

    @property
    def stored(self) -> Stored: ...

    def tokens(self) -> Tokens:
        """As `StateSource.tokens`."""

    def states(self) -> list[npt.NDArray[Any]]:
        """As `StateSource.states`."""


class SourceOfSamples(ABC):
    """A `StateSource` over samples that can be opened one by one."""

    format: str
    where: str

    def __init__(self, entries: Sequence[Entry], refused: Mapping[str, SampleError]) -> None:
        """Keep what listing found.

        Args:
            entries: in the source's order.
            refused: place to why its name alone condemns it.
        """
        self._entries = list(entries)
        self._refused = dict(refused)

    @abstractmethod
    def facts(self) -> SourceFacts:
        """As `StateSource.facts`."""

    @abstractmethod
    def _open(self, entry: Entry) -> Opened:
        """Open a sample that is not refused by name.

        Raises:
            SampleError: it is not a sample of this layout and of the target's hidden size.
        """

    def entries(self) -> list[Entry]:
        """As `StateSource.entries`."""
        return list(self._entries)

    def tokens(self, entry: Entry) -> Tokens:
        """As `StateSource.tokens`."""
        return self._checked(entry).tokens()

    def states(self, entry: Entry) -> list[npt.NDArray[Any]]:
        """As `StateSource.states`."""
        return self._checked(entry).states()

    @cached_property
    def first(self) -> Stored:
        """How the first good sample is stored.

        Raises:
            InputError: there is none.
        """
        why, opened = "", 0
        for entry in self._entries:
            try:
                if entry.place not in self._refused:
                    opened += 1
                return self._opened(entry).stored
            except SampleError as error:
                why = why or str(error)
            if opened == _TRIED:
                break
        if not self._entries:
            why = "It holds no sample at all."
        raise InputError(
            f"{self.where} holds no sample of {self.format}'s layout that can be read, of the "
            f"first {len(self._entries) if opened < _TRIED else _TRIED}. {why}"
        )

    def _opened(self, entry: Entry) -> Opened:
        known = self._refused.get(entry.place)
        if known is not None:
            raise SampleError(known.kind, entry.place, _reason(known))
        return self._open(entry)

    def _checked(self, entry: Entry) -> Opened:
        opened = self._opened(entry)
        if opened.stored != self.first:
            raise refusals.refusal(
                refusals.MIXED,
                entry.place,
                str(opened.stored),
                f"{self.first} as in the samples before it",
                "Import what two runs made as two data sets.",
            )
        return opened


def _reason(error: SampleError) -> str:
    return str(error).removeprefix(f"sample {error.sample_id}: ")
