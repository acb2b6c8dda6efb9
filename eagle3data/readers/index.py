"""The index as readers see it: committed rows in token order, without those that are hidden."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.index import INDEX_SCHEMA
from eagle3data.storage.committed import read_committed
from eagle3data.storage.gathered import Parts, Piece, read_parts
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import Tombstone, list_tombstones, sample_key

_FEW_PARTS = 64


@dataclass(frozen=True)
class Index:
    """The rows of a data set as it is now.

    Attributes:
        rows: `INDEX_SCHEMA`, in token order; mapped where `index/all.arrow` holds them.
        generation: `sha256:...` over the parts' digests and the tombstones.
        hidden: rows that a tombstone hides.
    """

    rows: pa.Table
    generation: str
    hidden: int


def read_index(root: Root) -> Index:
    """Read `index/all.arrow` and whatever parts it doesn't hold yet.

    Raises:
        CorruptionError: a part that is truncated, no Arrow file or not as it was committed.
    """
    pieces = read_committed(root)
    # Listed last: a sample that is being done again may be missing, but is never there twice.
    tombstones = list_tombstones(root)
    visible = [rows for piece in pieces for rows in _visible(piece, tombstones)]
    rows = pa.concat_tables([INDEX_SCHEMA.empty_table(), *visible])
    committed = sum(piece.rows.num_rows for piece in pieces)
    return Index(
        rows=_in_token_order(rows),
        generation=_generation(pieces, tombstones),
        hidden=committed - rows.num_rows,
    )


def read_index_of(root: Root, groups: Sequence[Sequence[int]]) -> list[Index]:
    """The index of each group of shards, as if no others were committed.

    Args:
        root: of the data set.
        groups: shards of each; may be many groups, of one shard or of thousands.

    Raises:
        CorruptionError: a part that is gone, truncated or not as it was committed.
    """
    wanted = sorted({shard for group in groups for shard in group})
    # Of many, most are in a gathered file, which is mapped and not read.
    few = len(wanted) <= _FEW_PARTS
    pieces = list(read_parts(root, wanted)) if few else read_committed(root)
    tombstones = list_tombstones(root)
    return [_index_of(root, pieces, tombstones, sorted(group)) for group in groups]


def _index_of(
    root: Root, pieces: Sequence[Piece], tombstones: Sequence[Tombstone], shards: Sequence[int]
) -> Index:
    held = [part for piece in pieces for part in _parts_of(piece, shards)]
    gone = set(shards).difference(*(part.parts.shards.tolist() for part in held))
    if gone:
        raise CorruptionError(
            "object_missing",
            f"the index part of shard {min(gone)} is gone, which had been committed",
            url=root.url,
            shard=min(gone),
        )
    hiding = [tombstone for tombstone in tombstones if tombstone.shard in set(shards)]
    visible = [rows for part in held for rows in _visible(part, hiding)]
    rows = pa.concat_tables([INDEX_SCHEMA.empty_table(), *visible])
    return Index(
        rows=_in_token_order(rows),
        generation=_generation(held, hiding),
        hidden=sum(part.rows.num_rows for part in held) - rows.num_rows,
    )


def _parts_of(piece: Piece, shards: Sequence[int]) -> Iterator[Piece]:
    """Those parts of a piece that are of some shards, in runs; nothing is copied."""
    starts = np.append(0, np.cumsum(piece.parts.samples))
    at = np.flatnonzero(np.isin(piece.parts.shards, shards))
    for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1):
        if len(run):
            first, stop = int(run[0]), int(run[-1]) + 1
            rows = piece.rows.slice(int(starts[first]), int(starts[stop] - starts[first]))
            yield Piece(rows, piece.parts[first:stop], piece.held)


def _visible(piece: Piece, tombstones: Sequence[Tombstone]) -> Iterator[pa.Table]:
    """The rows between the hidden ones; nothing is copied."""
    starts = np.append(0, np.cumsum(piece.parts.samples))
    begin = 0
    for shard, some in groupby(tombstones, key=lambda tombstone: tombstone.shard):
        at = int(np.searchsorted(piece.parts.shards, shard))
        if at == len(piece.parts) or piece.parts.shards[at] != shard:
            continue
        first, stop = int(starts[at]), int(starts[at + 1])
        keys = {tombstone.key for tombstone in some}
        ids = piece.rows["sample_id"].slice(first, stop - first).to_pylist()
        for row, sample_id in enumerate(ids, first):
            if sample_key(str(sample_id)) in keys:
                yield piece.rows.slice(begin, row - begin)
                begin = row + 1
    yield piece.rows.slice(begin)


def _in_token_order(rows: pa.Table) -> pa.Table:
    """The rows as they are, unless a part that this package did not write has them in disorder."""
    offsets = rows["token_offset"].to_numpy()
    return rows if np.all(np.diff(offsets) >= 0) else rows.sort_by("token_offset")


def _generation(pieces: Sequence[Piece], tombstones: Sequence[Tombstone]) -> str:
    parts = Parts.joined(piece.parts for piece in pieces)
    digest = hashlib.sha256(f"{len(parts)} parts, {len(tombstones)} tombstones\n".encode())
    for buffer in parts.buffers():
        digest.update(buffer)
    for tombstone in tombstones:
        digest.update(tombstone.name.encode() + b"\n")
    return "sha256:" + digest.hexdigest()
