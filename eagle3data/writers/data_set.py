"""Create a data set, continue one, keep its ledger, and gather its index into one file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from eagle3data.schema.errors import AlreadyExistsError, CorruptionError, InputError, MismatchError
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import metadata_documents
from eagle3data.storage.root import Root


def create_data_set(root: Root, manifest: Manifest, shards: int) -> None:
    """Write the metadata of a new data set, or check that the one there is the same.

    The group's `zarr.json` (with the manifest) comes first, so a process killed between the
    documents leaves a set that the next run recognises as its own and completes.

    Raises:
        InputError: the place holds something that is not a data set.
        MismatchError: it holds a data set of another model, capture, storage or plan.
    """
    require_place(root)
    if root.exists(layout.GROUP):
        require_same(root, manifest)
    for name, document in metadata_documents(manifest, shards).items():
        if not root.exists(name):
            create_once(root, name, document)


def require_place(root: Root) -> None:
    """Refuse a place that holds anything but a data set; touches nothing.

    Raises:
        InputError: naming what is there.
    """
    root.require_reachable()
    foreign = [name for name in root.names() if name not in {".tmp", "claims"}]
    if foreign and not root.exists(layout.GROUP):
        raise InputError(
            f"{root.url} holds something else ({', '.join(foreign[:3])}"
            f"{', ...' if len(foreign) > 3 else ''}) and no data set. Nothing was written: "
            "choose an empty or new folder."
        )


def require_same(root: Root, manifest: Manifest) -> None:
    """Refuse to continue a data set that is not the one the caller means.

    Raises:
        MismatchError: with each field that differs, as found there and wanted here.
    """
    there = layout.read_manifest(root)
    differences = there.differences(manifest)
    fields = {difference.partition(":")[0] for difference in differences}
    if fields and fields <= {"plan_digest", "storage.shard_tokens", "storage.chunk_tokens"}:
        raise MismatchError(
            f"{root.url} was planned from other prompts (other samples, another order or other "
            "masks) or with another --shard-tokens. It was left as it is. Continue it with the "
            "prompts of the first run, or choose another --out."
        )
    if differences:
        raise MismatchError(
            f"{root.url} holds another data set; it was left as it is. There and here differ in "
            f"{'; '.join(differences)}. Use the arguments of the first run, or another --out."
        )


def create_once(root: Root, name: str, data: bytes) -> None:
    """Create an object that every writer would write alike; finding it there is fine."""
    try:
        root.create(name, [data])
    except AlreadyExistsError:
        if not root.exists(name):
            raise


def write_plan(root: Root, segment: int, table: pa.Table, facts: Mapping[str, Any]) -> None:
    """Add a plan segment, or check that the one there is the same.

    Raises:
        MismatchError: a segment of that number with another digest exists.
    """
    name = layout.plan_segment(segment)
    try:
        root.create(name, [layout.encode_table(table, facts)])
    except AlreadyExistsError:
        _, there = layout.read_table(root, name)
        if there.get("digest") != facts["digest"]:
            raise MismatchError(
                f"{root.url}/{name} plans other samples, another order or another model: its "
                f"digest is {there.get('digest')}, here it is {facts['digest']}."
            ) from None


def record_failure(root: Root, *, shard: int, sample_id: str, kind: str, reason: str) -> None:
    """Add a row to the ledger: a sample that was tried and could not be written."""
    row = {"shard": shard, "sample_id": sample_id, "kind": kind, "reason": reason}
    name = f"ledger/{shard:08d}-{uuid.uuid4().hex[:12]}.json"
    root.create(name, [json.dumps(row).encode()])


def read_ledger(root: Root) -> list[dict[str, Any]]:
    """All ledger rows: `shard`, `sample_id`, `kind`, `reason`.

    Raises:
        CorruptionError: an entry that is not one.
    """
    rows = []
    for name in root.names("ledger"):
        if not name.endswith(".json"):
            continue
        try:
            row = json.loads(root.read(f"ledger/{name}"))
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"shard", "sample_id", "kind", "reason"} <= set(row):
            raise CorruptionError(
                "ledger_corrupt",
                f"ledger/{name} is no ledger entry; look at it, then delete it",
                url=root.url,
            )
        rows.append(row)
    return rows


def consolidate_index(root: Root) -> None:
    """Gather all index parts into `index/all.arrow`, with the digest of each part it holds."""
    tables, parts = [], {}
    for shard in layout.committed_shards(root):
        table, facts = layout.read_table(root, layout.index_part(shard))
        tables.append(table)
        parts[str(shard)] = facts["rows"]
    if tables:
        combined = pa.concat_tables(tables).combine_chunks()
        root.replace(layout.ALL_PARTS, layout.encode_table(combined, {"parts": parts}))
