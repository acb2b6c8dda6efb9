"""The ledger: what was tried and failed, and why; never "missing, cause unknown"."""

from __future__ import annotations

import json
import uuid
from typing import Any

from eagle3data.schema.errors import CorruptionError
from eagle3data.storage.root import Root

FOLDER = "ledger"


def record_failure(root: Root, *, shard: int, sample_id: str, kind: str, reason: str) -> None:
    """Add a row: a sample that could not be written, or was written and can't be read.

    Raises:
        SpaceError, InputError: the place is full or can't be written.
    """
    row = {"shard": shard, "sample_id": sample_id, "kind": kind, "reason": reason}
    name = f"{FOLDER}/{shard:08d}-{uuid.uuid4().hex[:12]}.json"
    root.create(name, [json.dumps(row).encode()])


def read_ledger(root: Root) -> list[dict[str, Any]]:
    """All rows: `shard`, `sample_id`, `kind`, `reason`.

    Raises:
        CorruptionError: an entry that is not one.
    """
    return [read_entry(root, name) for name in list_entries(root)]


def list_entries(root: Root) -> list[str]:
    """Names of the objects that are entries, or ought to be."""
    return [f"{FOLDER}/{name}" for name in root.names(FOLDER) if name.endswith(".json")]


def read_entry(root: Root, name: str) -> dict[str, Any]:
    """One row, by its object's name.

    Raises:
        CorruptionError: it is not one.
    """
    try:
        row = json.loads(root.read(name))
    except ValueError:
        row = None
    if not isinstance(row, dict) or not {"shard", "sample_id", "kind", "reason"} <= set(row):
        raise CorruptionError(
            "ledger_corrupt",
            f"{name} is no ledger entry; `eagle3data repair` removes it",
            url=root.url,
        )
    return row
