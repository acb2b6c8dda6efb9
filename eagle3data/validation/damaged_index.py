"""The index and what goes with it, as `repair` sees them: parts that are none, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.index import PLAN_SCHEMA, plan_digest, rows_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import metadata_documents
from eagle3data.storage.claims import MANIFEST, shard_name
from eagle3data.storage.committed import gathered_pieces
from eagle3data.storage.gathered import Parts, Piece, read_part
from eagle3data.storage.ledger import list_entries, read_entry
from eagle3data.storage.root import Root
from eagle3data.validation.array_metadata import differing_documents
from eagle3data.validation.repair_actions import Action
from eagle3data.writers.data_set import consolidate_index, drop_part, write_plan

_SHOWN_BYTES = 200


@dataclass(kw_only=True)
class PartsSeen:
    """All index parts, read.

    Attributes:
        digests: of the rows of each part that is whole, by shard.
        broken: what is wrong with each of the others, by shard.
    """

    digests: dict[int, bytes] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)


def read_all_parts(root: Root) -> PartsSeen:
    """Read every index part.

    Raises:
        OSError: the store fails; that is no damage, so nothing may be concluded from it.
    """
    seen = PartsSeen()
    shards = layout.committed_shards(root)
    with ThreadPoolExecutor(root.threads, "eagle3data-repair") as pool:
        for shard, found in zip(shards, pool.map(partial(_read, root), shards), strict=True):
            if isinstance(found, str):
                seen.broken[shard] = found
            elif found is not None:
                seen.digests[shard] = found
    return seen


def _read(root: Root, shard: int) -> bytes | str | None:
    """The digest of a part's rows, or what is wrong with it; None where it is gone."""
    try:
        digest: bytes = read_part(root, shard).parts.digests[0].tobytes()
    except (CorruptionError, InputError) as error:
        return str(error.args[0]) if _is_readable(root, layout.index_part(shard)) else None
    return digest


def _is_readable(root: Root, name: str) -> bool:
    """Whether an object that seemed damaged is there and its bytes can be had.

    Raises:
        OSError: the store failed, which looked like damage.
    """
    try:
        root.read(name)
    except FileNotFoundError:
        return False
    return True


def drop_broken_parts(root: Root, seen: PartsSeen, planned: pa.Table) -> Iterator[Action]:
    """Take back each commit whose part can't be read or is not as it was committed."""
    by_shard = planned_samples(planned)
    for shard, fault in seen.broken.items():
        names = by_shard.get(shard, [])
        yield Action(
            kind="drop_part",
            place=layout.index_part(shard),
            why=f"{fault}; shard {shard} with its {len(names)} planned samples "
            f"({_named(names)}) is to be done again.",
            do=partial(_drop, root, shard),
            claim=shard_name(shard),
            shard=shard,
            samples=tuple(names),
        )


def _drop(root: Root, shard: int) -> None:
    if isinstance(_read(root, shard), str):
        drop_part(root, shard)


def planned_samples(planned: pa.Table) -> dict[int, list[str]]:
    """Sample ids of a plan, by shard."""
    found: dict[int, list[str]] = {}
    shards = planned["shard"].to_numpy().tolist()
    for shard, name in zip(shards, planned["sample_id"].to_pylist(), strict=True):
        found.setdefault(shard, []).append(str(name))
    return found


def _named(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) + more) or "the plan doesn't say which"


def regather(root: Root, seen: PartsSeen, *, unfinished: bool) -> Iterator[Action]:
    """Make `index/all.arrow` anew where it is damaged, untrue or incomplete.

    Args:
        root: of the data set.
        seen: its parts.
        unfinished: somebody is still adding parts, and will gather them.
    """
    pieces = gathered_pieces(root)
    held = {int(shard) for shard in Parts.joined(piece.parts for piece in pieces).shards}
    missing = seen.digests.keys() - held
    if not pieces and root.exists(layout.ALL_PARTS):
        fault = "it is not a whole gathered index"
    elif held - seen.digests.keys():
        fault = f"it holds shards without a whole part ({min(held - seen.digests.keys())}, ...)"
    elif not all(_is_true(piece, seen.digests) for piece in pieces):
        fault = "it holds other rows than the parts"
    elif missing and not unfinished:
        yield _regather(f"it lacks {len(missing)} parts.", partial(consolidate_index, root))
        return
    else:
        return
    yield _regather(f"{fault}; all that it should hold is in the parts.", partial(_renew, root))


def _regather(why: str, do: Callable[[], None]) -> Action:
    return Action(kind="gather_index", place=layout.ALL_PARTS, why=why, do=do)


def _renew(root: Root) -> None:
    root.delete(layout.ALL_PARTS)
    consolidate_index(root)


def _is_true(piece: Piece, digests: Mapping[int, bytes]) -> bool:
    """Whether every part's rows in a gathered piece are the part's own."""
    starts = np.append(0, np.cumsum(piece.parts.samples)).tolist()
    for at, shard in enumerate(piece.parts.shards.tolist()):
        rows = piece.rows.slice(starts[at], starts[at + 1] - starts[at])
        if rows_digest(rows) != f"sha256:{digests[shard].hex()}":
            return False
    return True


def remove_ledger_entries(root: Root) -> Iterator[Action]:
    """Remove what lies in the ledger and is no entry: `extract` and `status` stop at it.

    The sample it may have excused is tried again, and gets an entry again.
    """
    for name in list_entries(root):
        try:
            read_entry(root, name)
        except CorruptionError:
            found = root.read(name)[:_SHOWN_BYTES]
            yield Action(
                kind="remove_ledger_entry",
                place=name,
                why=f"it is no ledger entry; it begins {found!r}.",
                do=partial(root.delete, name),
            )


@dataclass(kw_only=True)
class PlanSeen:
    """All plan segments, read.

    Attributes:
        rows: of the readable ones, `PLAN_SCHEMA`.
        shards: that each readable segment plans, by the segment's number.
    """

    rows: pa.Table
    shards: dict[int, set[int]]

    def is_by_shard(self, manifest: Manifest) -> bool:
        """Whether `DatasetWriter` made it: each segment is for the one shard of its number."""
        return manifest.plan_digest is None and all(len(some) < 2 for some in self.shards.values())


def read_segments(root: Root) -> PlanSeen:
    """Read every plan segment; what can't be read is left out (`validate` reports it).

    Raises:
        OSError: the store fails.
    """
    names = [name for name in root.names("plan") if re.fullmatch(r"[0-9]{4,}\.arrow", name)]
    with ThreadPoolExecutor(root.threads, "eagle3data-repair") as pool:
        found = list(pool.map(partial(_read_segment, root), names))
    tables = {
        int(name[:-6]): table for name, table in zip(names, found, strict=True) if table is not None
    }
    return PlanSeen(
        rows=pa.concat_tables([PLAN_SCHEMA.empty_table(), *tables.values()]),
        shards={
            number: set(table["shard"].to_numpy().tolist()) for number, table in tables.items()
        },
    )


def _read_segment(root: Root, name: str) -> pa.Table | None:
    try:
        return layout.read_plan_segment(root, f"plan/{name}")
    except (CorruptionError, InputError):
        _is_readable(root, f"plan/{name}")
        return None


def rewrite_segments(
    root: Root, manifest: Manifest, seen: PartsSeen, plan: PlanSeen
) -> Iterator[Action]:
    """Write `DatasetWriter`'s plan segments of committed shards anew where they are lost.

    All that such a segment says is in the shard's index part.
    """
    if not plan.is_by_shard(manifest):
        return
    for shard in seen.digests:
        if plan.shards.get(shard) != {shard}:
            yield Action(
                kind="rewrite_segment",
                place=layout.plan_segment(shard),
                why=f"it doesn't plan shard {shard}, which is committed.",
                do=partial(_rewrite_segment, root, manifest, shard),
                claim=shard_name(shard),
                shard=shard,
            )


def _rewrite_segment(root: Root, manifest: Manifest, shard: int) -> None:
    rows = read_part(root, shard).rows
    shards = pa.array([shard] * rows.num_rows, PLAN_SCHEMA.field("shard").type)
    columns = {
        name: shards if name == "shard" else rows[name].combine_chunks()
        for name in PLAN_SCHEMA.names
    }
    table = pa.table(columns, schema=PLAN_SCHEMA)
    digest = plan_digest(manifest.identity, table)
    root.delete(layout.plan_segment(shard))
    write_plan(root, shard, table, {"digest": digest, "first_shard": shard, "shards": 1})


def rewrite_documents(root: Root, manifest: Manifest) -> Iterator[Action]:
    """Write array metadata anew from the manifest, where it is not what that asks for."""
    for name, fields in differing_documents(root, manifest).items():
        yield Action(
            kind="rewrite_metadata",
            place=name,
            why=f"it is not what the manifest asks for: {', '.join(fields)}.",
            do=partial(_rewrite, root, manifest, name),
            claim=MANIFEST,
        )


def _rewrite(root: Root, manifest: Manifest, name: str) -> None:
    if name in differing_documents(root, manifest):
        planned = read_segments(root).rows["shard"].to_numpy().tolist()
        last = max([*planned, *layout.committed_shards(root)], default=-1)
        root.replace(name, metadata_documents(manifest, last + 1)[name])
