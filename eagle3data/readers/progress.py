"""How far a data set is, from its root alone: nobody has to run, and any machine may look."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data.readers.speed import Commit, Speed, speed_of
from eagle3data.storage import layout
from eagle3data.storage.claim_watch import SeenClaim, Standing, watch_claims
from eagle3data.storage.claims import STALE_AFTER, Claims, ClaimState
from eagle3data.storage.ledger import list_entries, read_entry
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import list_tombstones


@dataclass(frozen=True, kw_only=True)
class Count:
    """Shards, samples and tokens of something."""

    shards: int = 0
    samples: int = 0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A data set as it was when it was looked at.

    Attributes:
        url: its root.
        planned: by all plan segments.
        committed: shards whose index part is there, hidden samples included.
        is_planned: the plan was made before; else a `DatasetWriter` plans as it goes, and nobody
            knows how much is to come.
        hidden: samples that tombstones hide.
        bytes: of the committed shards.
        tokens_left: of the planned shards that are not committed.
        speed: tokens a second.
        free: bytes of the disk that are free; None for an object store.
        claims: who works on it.
        failures: the ledger: `shard`, `sample_id`, `kind`, `reason`.
        unreadable: committed shards whose index part can't be read.
    """

    url: str
    planned: Count
    committed: Count
    is_planned: bool
    hidden: int
    bytes: int
    tokens_left: int
    speed: Speed
    free: int | None
    claims: list[SeenClaim]
    failures: list[dict[str, Any]]
    unreadable: list[int]

    @property
    def is_complete(self) -> bool:
        """Whether all that is planned is committed, and nobody is about to plan more."""
        all_there = self.planned.shards > 0 and self.committed.shards >= self.planned.shards
        return all_there and (self.is_planned or not self.claims)

    @property
    def seconds_left(self) -> float | None:
        """Time for what is left, at the speed of now; None where that is not known."""
        speed = self.speed.now or self.speed.average
        if not self.tokens_left:
            return 0.0
        return self.tokens_left / speed if speed and self.is_planned else None

    @property
    def free_at_end(self) -> int | None:
        """Bytes of the disk that will be free when all is written; may be less than 0."""
        if self.free is None or not self.committed.tokens:
            return None
        return self.free - round(self.bytes / self.committed.tokens * self.tokens_left)


class Watch:
    """Looks at a data set again and again; reads only what is new since the last look."""

    def __init__(self, root: Root) -> None:
        """Look at nothing yet.

        Raises:
            InputError: no data set there.
            ManifestError: of another format, or newer than this package reads.
        """
        self._root = root
        self.manifest = layout.read_manifest(root)
        self._planned: dict[int, Count] = {}
        self._commits: dict[int, Commit] = {}
        self._segments: dict[str, dict[int, Count]] = {}
        self._failures: dict[str, dict[str, Any]] = {}
        self._claims = Claims(root)
        self._states: dict[str, ClaimState] = {}
        self._renewed: dict[str, float] = {}

    def look(self) -> Progress:
        """How far it is now.

        Raises:
            CorruptionError: a plan segment or a ledger entry that can't be read.
        """
        # Claims first: whoever lets go of one has committed before.
        claims = self._look_at_claims()
        planned = self._planned = self._look_at_plan()
        committed = layout.committed_shards(self._root)
        unreadable = self._look_at_parts(committed)
        commits = list(self._commits.values())
        there = set(committed)
        left = [count.tokens for shard, count in planned.items() if shard not in there]
        room = self._root.room()
        return Progress(
            url=self._root.url,
            planned=_total(list(planned.values())),
            committed=Count(
                shards=len(committed),
                samples=sum(commit.samples for commit in commits),
                tokens=sum(commit.tokens for commit in commits),
            ),
            is_planned=self.manifest.plan_digest is not None,
            hidden=sum(found.shard in there for found in list_tombstones(self._root)),
            bytes=sum(commit.bytes for commit in commits),
            tokens_left=sum(left),
            speed=speed_of(commits, time.time()),
            free=None if room is None else room[0],
            claims=claims,
            failures=self._look_at_ledger(),
            unreadable=unreadable,
        )

    @property
    def planned(self) -> Mapping[int, Count]:
        """What each shard is to hold, as the last look found it."""
        return self._planned

    @property
    def commits(self) -> Mapping[int, Commit]:
        """What each committed shard holds, as the last look found it; unreadable ones left out."""
        return self._commits

    def _look_at_plan(self) -> dict[int, Count]:
        """What each shard is to hold."""
        planned: dict[int, Count] = {}
        for name in layout.plan_segments(self._root):
            if name not in self._segments:
                self._segments[name] = _by_shard(layout.read_plan_segment(self._root, name))
            planned.update(self._segments[name])
        return planned

    def _look_at_parts(self, committed: Sequence[int]) -> list[int]:
        """Read the parts that are new; those that can't be read."""
        there = set(committed)
        self._commits = {shard: found for shard, found in self._commits.items() if shard in there}
        new = [shard for shard in committed if shard not in self._commits]
        if not new:
            return []
        with ThreadPoolExecutor(1 if self._root.is_local else self._root.threads) as pool:
            found = [commit for commit in pool.map(self._read_part, new) if commit is not None]
        self._commits.update((commit.shard, commit) for commit in found)
        return sorted(set(new) - set(self._commits))

    def _read_part(self, shard: int) -> Commit | None:
        try:
            data = self._root.read(layout.index_part(shard))
            # Unchecked, which is most of what reading a part costs: nothing here is trained on.
            with pa.ipc.open_file(pa.BufferReader(data)) as file:
                facts = layout.facts_of(file.schema)
                batches = [file.get_batch(at) for at in range(file.num_record_batches)]
            return _commit(shard, batches, facts)
        except (OSError, pa.ArrowException, ValueError, TypeError, KeyError):
            return None

    def _look_at_ledger(self) -> list[dict[str, Any]]:
        names = list_entries(self._root)
        kept = {name: self._failures[name] for name in names if name in self._failures}
        new = {name: read_entry(self._root, name) for name in names if name not in kept}
        self._failures = {**kept, **new}
        return [self._failures[name] for name in names]

    def _look_at_claims(self) -> list[SeenClaim]:
        """Claims, and what has been learnt of their owners by looking more than once."""
        seen = watch_claims(self._root, self._claims, wait=False)
        clock = time.monotonic()
        for claim in seen:
            name = claim.state.name
            if name in self._states and self._states[name] != claim.state:
                self._renewed[name] = clock
        self._states = {claim.state.name: claim.state for claim in seen}
        return [
            replace(claim, standing=Standing.LIVE) if self._was_renewed(claim, clock) else claim
            for claim in seen
        ]

    def _was_renewed(self, claim: SeenClaim, clock: float) -> bool:
        renewed = self._renewed.get(claim.state.name)
        is_unknown = claim.standing is Standing.UNKNOWN
        return is_unknown and renewed is not None and clock - renewed < STALE_AFTER


def _total(counts: Sequence[Count]) -> Count:
    return Count(
        shards=len(counts),
        samples=sum(count.samples for count in counts),
        tokens=sum(count.tokens for count in counts),
    )


def _by_shard(plan: pa.Table) -> dict[int, Count]:
    shards, rows = np.unique(plan["shard"].to_numpy(), return_inverse=True)
    samples = np.bincount(rows, minlength=len(shards)).tolist()
    tokens = np.bincount(rows, plan["length"].to_numpy(), minlength=len(shards)).tolist()
    return {
        shard: Count(shards=1, samples=count, tokens=int(length))
        for shard, count, length in zip(shards.tolist(), samples, tokens, strict=True)
    }


def _commit(shard: int, batches: list[pa.RecordBatch], facts: dict[str, Any]) -> Commit:
    """What a part says of its shard.

    Raises:
        KeyError, TypeError, ValueError: it says something else.
    """
    return Commit(
        shard=shard,
        samples=sum(batch.num_rows for batch in batches),
        tokens=sum(int(batch.column("length").to_numpy().sum()) for batch in batches),
        bytes=sum(int(entry["bytes"]) for entry in facts["objects"]),
        objects=len(facts["objects"]),
        written_at=_seconds(facts.get("written_at")),
        writer=f"{facts.get('host')} {facts.get('process')}",
    )


def _seconds(written_at: Any) -> float | None:
    if written_at is None:
        return None
    return datetime.datetime.fromisoformat(str(written_at)).timestamp()
