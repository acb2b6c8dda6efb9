"""Tombstones: samples that are no part of the set any more, though their bytes stay as they are.

The name says which: the shard and 12 hex digits of the SHA-256 of the sample id. So hiding them
takes one listing, and a damaged tombstone still hides. What is inside is for people.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from eagle3data.schema.errors import AlreadyExistsError, CorruptionError
from eagle3data.storage.root import Root

FOLDER = "quarantine"
_NAME = re.compile(r"([0-9]{8,})-([0-9a-f]{12})\.json")


@dataclass(frozen=True, order=True)
class Tombstone:
    """Which sample is hidden.

    Attributes:
        shard: where its bytes lie.
        key: `sample_key` of its id.
    """

    shard: int
    key: str

    @property
    def name(self) -> str:
        """Its object."""
        return f"{FOLDER}/{self.shard:08d}-{self.key}.json"


def sample_key(sample_id: str) -> str:
    """12 hex digits that stand for a sample id in a tombstone's name."""
    return hashlib.sha256(sample_id.encode()).hexdigest()[:12]


def bury(root: Root, *, shard: int, sample_id: str, kind: str, reason: str) -> Tombstone:
    """Hide a sample; one that is hidden already stays as it is.

    Args:
        shard: where its bytes lie.
        kind: code of the fault, as `validate` reports it.
        reason: for people.

    Raises:
        SpaceError, InputError: the place is full or can't be written.
    """
    tombstone = Tombstone(shard, sample_key(sample_id))
    entry = {
        "shard": shard,
        "sample_id": sample_id,
        "kind": kind,
        "reason": reason,
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    with suppress(AlreadyExistsError):
        root.create(tombstone.name, [json.dumps(entry).encode()])
    return tombstone


def list_tombstones(root: Root) -> list[Tombstone]:
    """All tombstones, ascending; costs one listing."""
    found = (_NAME.fullmatch(name) for name in root.names(FOLDER))
    return sorted(Tombstone(int(match[1]), match[2]) for match in found if match)


def read_tombstone(root: Root, tombstone: Tombstone) -> dict[str, Any]:
    """What a tombstone says: `shard`, `sample_id`, `kind`, `reason`, `written_at`.

    Raises:
        CorruptionError: it is gone, or says something else.
    """
    try:
        entry = json.loads(root.read(tombstone.name))
    except (FileNotFoundError, ValueError):
        entry = None
    fields = {"shard", "sample_id", "kind", "reason"}
    if not isinstance(entry, dict) or not fields <= set(entry):
        raise CorruptionError(
            "tombstone_corrupt",
            f"{tombstone.name} doesn't say which sample it hides and why; its name still hides it",
            url=root.url,
            shard=tombstone.shard,
        )
    return entry
