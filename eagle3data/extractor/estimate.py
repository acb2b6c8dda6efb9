"""What an extraction will take: room and time, known before a GPU is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3data.extractor.plan import Plan
from eagle3data.readers.progress import Watch
from eagle3data.schema.axis import SizeArithmetic
from eagle3data.schema.errors import InputError
from eagle3data.schema.index import plan_rows_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.target import checkpoint_bytes
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from eagle3data.writers.shard_writer import reserved_bytes

REFERENCE_SPEED = 3165.0
"""Prompt tokens a second of Kimi-K2.5 on 8 GPUs."""
_SPACE_FACTOR = 1.05
"""Room asked for above the arithmetic: metadata, index, and the file system's own rounding."""
_LOAD_BYTES_PER_SECOND = 2e9
"""A checkpoint from a good local disk; one over a network takes longer."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is to be written to a place, and what is free there.

    Attributes:
        needed: bytes.
        free: bytes; None for an object store.
        reserve: bytes that stay free, since writing stops there.
    """

    needed: int
    free: int | None
    reserve: int

    @property
    def fits(self) -> bool:
        """Whether all of it can be written; true where nobody knows."""
        return self.free is None or self.free >= self.needed + self.reserve

    @property
    def free_at_end(self) -> int | None:
        """Bytes that are free when it is written; less than 0 where it can't be."""
        return None if self.free is None else self.free - self.needed


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast an engine is, and how that is known.

    Attributes:
        tokens_per_second: of prompts.
        source: for people.
        other_target: the model that it was measured with, where that is another.
    """

    tokens_per_second: float
    source: str
    other_target: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToDo:
    """What is left of a plan at a place.

    Attributes:
        shards: that are not committed there.
        sizes: of their samples.
        room: that these take.
        is_foreign: the place holds a data set from other prompts, or with other shards.
    """

    shards: list[int]
    sizes: SizeArithmetic
    room: Room
    is_foreign: bool


def room_for(root: Root, manifest: Manifest, lengths: Sequence[int]) -> Room:
    """The room for samples of these lengths (tokens) at a place, and what is free there."""
    stored = manifest.size_arithmetic(lengths).stored_bytes(manifest.storage.codec)
    free, total = root.room() or (None, 0)
    return Room(needed=round(stored * _SPACE_FACTOR), free=free, reserve=reserved_bytes(total))


def what_is_left(root: Root, plan: Plan) -> ToDo:
    """What of a plan is not committed at a place; touches nothing.

    Raises:
        InputError: the place can't be reached.
        CorruptionError: the plan that is there can't be read.
    """
    root.require_reachable()
    there = layout.plan_segments(root)
    is_same = bool(there) and plan_rows_digest(
        layout.read_plan_segment(root, there[0])
    ) == plan_rows_digest(plan.table)
    committed = set(layout.committed_shards(root)) if is_same else set()
    shards: list[int] = plan.table["shard"].to_numpy().tolist()
    lengths: list[int] = plan.table["length"].to_numpy().tolist()
    left = [at for at, shard in enumerate(shards) if shard not in committed]
    lengths_left = [lengths[at] for at in left]
    return ToDo(
        shards=sorted({shards[at] for at in left}),
        sizes=plan.manifest.size_arithmetic(lengths_left),
        room=room_for(root, plan.manifest, lengths_left),
        is_foreign=bool(there) and not is_same,
    )


def pace_of(url: str, manifest: Manifest) -> Pace:
    """The speed at which a data set was extracted.

    Args:
        url: its root.
        manifest: of the set that is planned.

    Raises:
        InputError: no data set there, or too few commits to know.
    """
    watch = Watch(Root(url))
    average = watch.look().speed.average
    if average is None:
        raise InputError(
            f"{url} doesn't say how fast it was made: that takes several shards, committed one "
            "after another. Give --tokens-per-second instead."
        )
    made = watch.manifest
    is_same = made.target.config_digest == manifest.target.config_digest
    return Pace(
        tokens_per_second=average,
        source=f"as {url} was made, by {made.capture.engine_version or made.capture.engine}",
        other_target=None if is_same else made.target.name,
    )


def load_seconds_of(model: str, revision: str | None = None) -> float | None:
    """An estimate of the time to load a model's weights; None where their size isn't known."""
    count = checkpoint_bytes(model, revision)
    return None if count is None else count / _LOAD_BYTES_PER_SECOND
