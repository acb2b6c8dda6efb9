"""What both ways of copying offer: a preview that writes nothing, a run, and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from eagle3data.schema.errors import SpaceError
from eagle3data.storage.root import Root
from eagle3data.writers.shared_shards import OnWait

_SPACE_FACTOR = 1.02
"""Room asked for above the arithmetic: metadata, index, and the file system's own rounding."""

OnBytes = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a copy will be, and what is left to do.

    Attributes:
        byte_for_byte: shards are copied as they are; else samples are written anew.
        samples: of the copy.
        tokens: of the copy.
        shards: of the copy.
        missing: shards that are not there yet.
        nbytes: about what the missing shards will take.
        work_bytes: bytes that will be read for them, for a progress display.
        free_bytes: room at the target; None where it can't be known.
        dropped: samples named to be left out.
        duplicates: samples left out because an earlier source has their ids.
    """

    byte_for_byte: bool
    samples: int
    tokens: int
    shards: int
    missing: int
    nbytes: int
    work_bytes: int
    free_bytes: int | None
    dropped: int = 0
    duplicates: int = 0

    @property
    def fits(self) -> bool:
        """Whether the target has room for what is missing."""
        return self.free_bytes is None or self.nbytes * _SPACE_FACTOR <= self.free_bytes


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """What a copy did.

    Attributes:
        samples: in the copy.
        tokens: in the copy.
        shards: committed in the copy.
        written: shards that this run committed.
        failed: samples that could not be read; the copy's ledger says why.
        generation: of the copy.
    """

    samples: int
    tokens: int
    shards: int
    written: int
    failed: int
    generation: str


class CopyJob(Protocol):
    """A copy that is known to be possible; nothing has been written."""

    preview: Preview

    def run(self, on_bytes: OnBytes, on_wait: OnWait) -> CopyReport:
        """Copy what is missing.

        Args:
            on_bytes: called with the bytes done since the last call, from any thread.
            on_wait: called every few seconds with the shards that other processes still have,
                when nothing else is left to do.

        Raises:
            CorruptionError: something in a source that is not what was written.
            SpaceError, InputError: the target is full or can't be written; what is committed
                stays.
        """


def require_space(target: Root, preview: Preview) -> None:
    """Refuse to begin what won't fit.

    Raises:
        SpaceError: with the room there is and the room it takes.
    """
    if not preview.fits:
        raise SpaceError(
            f"{target.url} has {(preview.free_bytes or 0) / 1e6:,.0f} MB free; the "
            f"{preview.missing} shards to write take about {preview.nbytes / 1e6:,.0f} MB. Nothing "
            "was written: free some space, or choose another place or a compressing --codec."
        )


def free_bytes(target: Root) -> int | None:
    """Room at the target; None where it can't be known."""
    room = target.room()
    return None if room is None else room[0]
