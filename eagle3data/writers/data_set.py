"""Create a data set, continue one, keep its ledger, and gather its index into one file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data.schema.errors import AlreadyExistsError, InputError, MismatchError
from eagle3data.schema.index import plan_rows_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import metadata_documents
from eagle3data.storage.committed import gather, read_committed
from eagle3data.storage.gathered import write_gathered
from eagle3data.storage.root import Root, Upload
from eagle3data.storage.tombstones import Tombstone, list_tombstones, sample_key


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
            "prompts of the first run, add these with --append, or choose another --out."
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
    facts = {**facts, "rows": plan_rows_digest(table)}
    try:
        root.create(name, [layout.encode_table(table, facts)])
    except AlreadyExistsError:
        _, there = layout.read_table(root, name)
        if there.get("digest") != facts["digest"]:
            raise MismatchError(
                f"{root.url}/{name} plans other samples, another order or another model: its "
                f"digest is {there.get('digest')}, here it is {facts['digest']}."
            ) from None


def live_sample_ids(root: Root) -> set[str]:
    """Ids of all committed samples that no tombstone hides.

    Raises:
        CorruptionError: an index part that can't be read.
    """
    hidden = set(list_tombstones(root))
    found: set[str] = set()
    for piece in read_committed(root):
        shards = np.repeat(piece.parts.shards, piece.parts.samples).tolist()
        for shard, name in zip(shards, piece.rows["sample_id"].to_pylist(), strict=True):
            if Tombstone(shard, sample_key(str(name))) not in hidden:
                found.add(str(name))
    return found


def drop_part(root: Root, shard: int) -> None:
    """Take a commit back: the shard's objects then belong to nobody and it is done again.

    For parts that are no commits: torn ones, and those whose objects are another attempt's.
    """
    # First, or it would go on serving the rows of a part that is made again.
    root.delete(layout.ALL_PARTS)
    root.delete(layout.index_part(shard))


def consolidate_index(root: Root) -> None:
    """Gather all index parts into `index/all.arrow`; nothing is written if it holds them already.

    What it holds is not read from the parts again, and one batch at a time is in memory.

    Raises:
        CorruptionError: a part that is gone, truncated or not as it was committed.
        SpaceError, InputError: the place is full or can't be written.
    """
    pieces = gather(root)
    if pieces is None:
        return
    upload = root.begin(layout.ALL_PARTS)
    try:
        write_gathered(_Sink(upload), pieces)
    except BaseException:
        upload.abort()
        raise
    upload.replace()


class _Sink(io.RawIOBase):
    """An upload as a file for pyarrow to write to."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any, /) -> int:
        self._upload.write([data])
        self._written += len(data)
        return len(data)
