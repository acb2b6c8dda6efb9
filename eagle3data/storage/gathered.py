"""`index/all.arrow`: all index parts in one Arrow file, which opens at once however many there are.

Each record batch holds whole parts in token order. Its metadata says which, with each part's row
count and digest, and the CRC32C of the batch: so a reader knows what the file lacks, and sees
damage before it follows an offset. Only the token ids and masks are outside that CRC32C, which
are nearly all of the file: they stay on the disk until somebody wants them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.schema.column_digest import columns_crc32c
from eagle3data.schema.digest import crc32c
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.index import INDEX_SCHEMA, TOKEN_COLUMNS, check_schema, rows_digest
from eagle3data.storage import layout
from eagle3data.storage.root import Root

_METADATA = b"eagle3data"
_BATCH_ROWS = 1 << 15
_BATCH_TOKENS = 1 << 23
"""A batch is closed before it has more than either: memory to write one, int32 list offsets."""
_READ_AHEAD = 256
"""Parts that are read before they are needed."""


@dataclass(frozen=True)
class Parts:
    """Which index parts some rows are of, ascending.

    Attributes:
        shards: `[n]` int64.
        samples: `[n]` int64, rows of each.
        digests: `[n]` of 32 bytes, the SHA-256 of each part's rows.
    """

    shards: npt.NDArray[np.int64]
    samples: npt.NDArray[np.int64]
    digests: npt.NDArray[np.void]

    @classmethod
    def one(cls, shard: int, samples: int, digest: str) -> Parts:
        """One part; its digest as `sha256:...`."""
        raw = bytes.fromhex(digest.removeprefix("sha256:"))
        return cls(np.array([shard]), np.array([samples]), np.frombuffer(raw, "V32"))

    @classmethod
    def joined(cls, several: Iterable[Parts]) -> Parts:
        """The parts of all, in this order."""
        listed = list(several)
        return cls(
            np.concatenate([np.empty(0, np.int64), *(parts.shards for parts in listed)]),
            np.concatenate([np.empty(0, np.int64), *(parts.samples for parts in listed)]),
            np.concatenate([np.empty(0, "V32"), *(parts.digests for parts in listed)]),
        )

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, which: slice) -> Parts:
        return Parts(self.shards[which], self.samples[which], self.digests[which])

    def buffers(self) -> list[bytes]:
        """The three arrays as little-endian bytes."""
        return [
            self.shards.astype("<i8").tobytes(),
            self.samples.astype("<i8").tobytes(),
            self.digests.tobytes(),
        ]


@dataclass(frozen=True)
class Piece:
    """Rows of some whole parts.

    Attributes:
        rows: `INDEX_SCHEMA`, in token order.
        parts: which parts they are.
        held: they are mapped from a gathered file.
    """

    rows: pa.Table
    parts: Parts
    held: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return int(self.rows["length"].to_numpy().sum())

    def split(self, shard: int) -> tuple[Piece, Piece]:
        """What lies before a shard and the rest; no bytes are copied."""
        at = int(np.searchsorted(self.parts.shards, shard))
        row = int(self.parts.samples[:at].sum())
        return (
            Piece(self.rows.slice(0, row), self.parts[:at], self.held),
            Piece(self.rows.slice(row), self.parts[at:], self.held),
        )


def read_part(root: Root, shard: int) -> Piece:
    """The rows of one index part, checked against the digest that they were committed with.

    Raises:
        CorruptionError: it is gone, no Arrow file, or not as it was committed.
    """
    return checked_part(root, shard, *layout.read_table(root, layout.index_part(shard)))


def checked_part(root: Root, shard: int, table: pa.Table, facts: Mapping[str, Any]) -> Piece:
    """The rows of an index part as `layout.read_table` gives it, checked likewise.

    Raises:
        CorruptionError: they are not as they were committed.
    """
    name = layout.index_part(shard)
    if table.schema != INDEX_SCHEMA:
        check_schema(table.schema, INDEX_SCHEMA, f"{root.url}/{name}")
        table = table.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA)
    if facts.get("shard") != shard:
        raise CorruptionError(
            "index_changed",
            f"{name} is the part of shard {facts.get('shard')}; `eagle3data repair` mends that",
            url=root.url,
            shard=shard,
        )
    digest = rows_digest(table)
    if facts.get("rows") != digest:
        raise CorruptionError(
            "index_changed",
            f"the rows of {name} have digest {digest}, it was committed with {facts.get('rows')}; "
            "`eagle3data repair` mends that",
            url=root.url,
            shard=shard,
        )
    return Piece(table, Parts.one(shard, table.num_rows, digest))


def read_parts(root: Root, shards: Sequence[int]) -> Iterator[Piece]:
    """Parts in the order given, a few ahead of their use.

    Raises:
        CorruptionError: as `read_part`.
    """
    with ThreadPoolExecutor(1 if root.is_local else root.threads, "eagle3data-index") as pool:
        for first in range(0, len(shards), _READ_AHEAD):
            yield from pool.map(partial(read_part, root), shards[first : first + _READ_AHEAD])


def merged(held: Iterable[Piece], newer: Iterable[Piece]) -> Iterator[Piece]:
    """Both in token order; a held piece is split where newer parts belong in between."""
    coming = iter(newer)
    following = next(coming, None)
    for piece in held:
        rest = piece
        while following is not None and following.parts.shards[0] < rest.parts.shards[-1]:
            before, rest = rest.split(int(following.parts.shards[0]))
            if len(before.parts):
                yield before
            yield following
            following = next(coming, None)
        yield rest
    if following is not None:
        yield following
        yield from coming


def coalesced(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same rows in fewer pieces; each has one chunk a column and at least one part."""
    waiting: list[Piece] = []
    rows = tokens = 0
    for piece in pieces:
        rows, tokens = rows + piece.rows.num_rows, tokens + piece.tokens
        if waiting and (rows > _BATCH_ROWS or tokens > _BATCH_TOKENS):
            yield _joined(waiting)
            waiting, rows, tokens = [], piece.rows.num_rows, piece.tokens
        waiting.append(piece)
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[Piece]) -> Piece:
    rows = pa.concat_tables([piece.rows for piece in pieces]).combine_chunks()
    return Piece(rows, Parts.joined(piece.parts for piece in pieces))


def write_gathered(sink: Any, pieces: Iterable[Piece], listing: str | None = None) -> None:
    """Write a gathered file; one batch at a time is in memory.

    Args:
        sink: a path, or anything with `write` for pyarrow to write to.
        pieces: in token order.
        listing: what a cache compares (see `index_cache`).
    """
    facts = {} if listing is None else {"listing": listing}
    schema = INDEX_SCHEMA.with_metadata({_METADATA: json.dumps(facts).encode()})
    with pa.ipc.new_file(sink, schema) as writer:
        for piece in coalesced(pieces):
            columns = [column.combine_chunks() for column in piece.rows.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            writer.write_batch(batch, custom_metadata={_METADATA: _describe(batch, piece.parts)})


def read_gathered(source: Any) -> tuple[list[Piece], str | None] | None:
    """The pieces of a gathered file, as they lie there, and the `listing` it was written with.

    None where it is damaged or something else: all that it holds is in the parts, so it is no
    loss (`validate` reports it).

    Args:
        source: an open Arrow file; the rows refer to its memory.
    """
    try:
        reader = pa.ipc.open_file(source)
        check_schema(reader.schema, INDEX_SCHEMA, layout.ALL_PARTS)
        facts = json.loads((reader.schema.metadata or {})[_METADATA])
        pieces = [_piece(reader, number) for number in range(reader.num_record_batches)]
        shards = Parts.joined(piece.parts for piece in pieces).shards
        if not len(shards) or np.any(np.diff(shards) <= 0):
            return None
        return pieces, facts.get("listing")
    except (pa.ArrowException, InputError, OSError, ValueError, KeyError, TypeError):
        return None


def _piece(reader: Any, number: int) -> Piece:
    """One batch.

    Raises:
        ValueError, KeyError, pa.ArrowInvalid: it is not what was written.
    """
    found = reader.get_batch_with_custom_metadata(number)
    found.batch.validate()
    columns = [found.batch.column(name) for name in INDEX_SCHEMA.names]
    batch = pa.RecordBatch.from_arrays(columns, schema=INDEX_SCHEMA)
    _check_counts(batch)
    described = json.loads(found.custom_metadata[_METADATA])
    shards, samples, digests = (
        base64.b64decode(described[name]) for name in ("shards", "samples", "rows")
    )
    parts = Parts(
        np.frombuffer(shards, "<i8"), np.frombuffer(samples, "<i8"), np.frombuffer(digests, "V32")
    )
    counts = {len(parts.shards), len(parts.samples), len(parts.digests)}
    if len(counts) > 1 or not len(parts) or parts.samples.sum() != batch.num_rows:
        raise ValueError("its parts are not its rows")
    if described["crc32c"] != _checksum(batch, parts):
        raise ValueError("it has another checksum")
    return Piece(pa.Table.from_batches([batch]), parts, held=True)


def _check_counts(batch: pa.RecordBatch) -> None:
    """Compare what Arrow says of the columns with the columns; the token values stay unread.

    Raises:
        ValueError: a count, an offset or a string is impossible.
    """
    for name in batch.schema.names:
        column: Any = batch.column(name)
        if name not in TOKEN_COLUMNS:
            column.validate(full=True)
        elif column.null_count or column.values.null_count:
            raise ValueError(f"{name} has nulls")


def _describe(batch: pa.RecordBatch, parts: Parts) -> bytes:
    names = ("shards", "samples", "rows")
    encoded = [base64.b64encode(buffer).decode() for buffer in parts.buffers()]
    described = {**dict(zip(names, encoded, strict=True)), "crc32c": _checksum(batch, parts)}
    return json.dumps(described).encode()


def _checksum(batch: pa.RecordBatch, parts: Parts) -> int:
    value = columns_crc32c(batch, TOKEN_COLUMNS)
    for buffer in parts.buffers():
        value = crc32c(buffer, value)
    return value
