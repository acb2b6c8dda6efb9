"""Level `quick`: what was planned against what the index holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.storage import layout
from eagle3data.storage.ledger import list_entries, read_entry
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import Tombstone, sample_key
from eagle3data.validation.findings import REPAIR, Finding, Severity

_PLAN_ADVICE = "Put back a copy of plan/; without it nobody can tell what is missing."


def check_plan(
    root: Root,
    parts: Mapping[int, pa.Table],
    tombstones: Collection[Tombstone],
    gathered: set[int],
) -> Iterator[Finding]:
    """The plan against the index parts: nothing missing, nothing twice, nothing unplanned.

    Args:
        root: of the data set.
        parts: visible rows of the readable index parts, by shard.
        tombstones: of the set.
        gathered: shards that `index/all.arrow` holds.
    """
    try:
        plan = layout.read_plan(root)
    except (CorruptionError, InputError) as error:
        yield Finding(kind="plan_corrupt", detail=str(error), advice=_PLAN_ADVICE)
        return
    if not plan.num_rows:
        if parts:
            yield Finding(
                kind="plan_missing",
                detail="shards are committed, but no plan says which samples belong in them.",
                advice=_PLAN_ADVICE,
            )
        return
    spans = sorted(
        (row["token_offset"], row["token_offset"] + row["length"], row["sample_id"])
        for row in plan.to_pylist()
    )
    for before, after in pairwise(spans):
        if after[0] < before[1]:
            yield Finding(
                kind="plan_corrupt",
                sample_id=after[2],
                detail=f"the plan puts it at token {after[0]}, where {before[2]} lies.",
                advice=_PLAN_ADVICE,
            )
            return
    failed, unreadable = _read_ledger(root)
    yield from unreadable
    have = {
        (shard, row["sample_id"]): row
        for shard, table in parts.items()
        for row in table.select(
            ["sample_id", "token_offset", "length", "tokens_crc32c"]
        ).to_pylist()
    }
    hidden = set(tombstones)
    uncommitted: Counter[int] = Counter()
    planned = set()
    unhidden, buried = set(), []
    for row in plan.to_pylist():
        key = (row["shard"], row["sample_id"])
        planned.add(key)
        if hidden and Tombstone(row["shard"], sample_key(row["sample_id"])) in hidden:
            buried.append(row)
            continue
        unhidden.add(row["sample_id"])
        if row["shard"] not in parts:
            uncommitted[row["shard"]] += 1
        elif key in have:
            yield from _as_planned(row, have[key])
        elif key not in failed:
            yield Finding(
                kind="index_hole",
                sample_id=row["sample_id"],
                shard=row["shard"],
                detail="it was planned, its shard is committed, and neither the index nor the "
                "ledger knows it.",
                advice=REPAIR,
            )
    planned_shards = {shard for shard, _ in planned}
    for shard in sorted({shard for shard, _ in have} - planned_shards):
        yield Finding(
            kind="plan_missing",
            shard=shard,
            detail=f"shard {shard} is committed, but no plan segment names it.",
            advice=_PLAN_ADVICE,
        )
    for shard, sample_id in have.keys() - planned:
        if shard not in planned_shards:
            continue
        yield Finding(
            kind="index_hole",
            sample_id=sample_id,
            shard=shard,
            detail="the index holds it, but no plan put it there.",
            advice=REPAIR,
        )
    yield from _lost(row for row in buried if row["sample_id"] not in unhidden)
    yield from _unfinished(uncommitted, root, gathered)


def _read_ledger(root: Root) -> tuple[set[tuple[int, str]], list[Finding]]:
    """What failed, and what in the ledger says nothing."""
    failed, unreadable = set(), []
    for name in list_entries(root):
        try:
            row = read_entry(root, name)
            failed.add((row["shard"], row["sample_id"]))
        except CorruptionError as error:
            detail = str(error)
            unreadable.append(Finding(kind="ledger_corrupt", detail=detail, advice=REPAIR))
    return failed, unreadable


def _lost(rows: Iterable[dict[str, Any]]) -> Iterator[Finding]:
    for row in rows:
        yield Finding(
            kind="index_hole",
            sample_id=row["sample_id"],
            shard=row["shard"],
            detail="a tombstone hides it, and no later plan segment does it again.",
            advice="Run `extract` again (or append the sample again, where no `extract` made the "
            "set).",
        )


def _unfinished(uncommitted: Counter[int], root: Root, gathered: set[int]) -> Iterator[Finding]:
    broken = set(layout.committed_shards(root)) | gathered  # reported already
    for shard in sorted(set(uncommitted) - broken):
        # Shards are worked on in any order, so only a run that has gathered its index is over.
        over = any(other > shard for other in gathered)
        yield Finding(
            kind="index_hole",
            severity=Severity.ERROR if over else Severity.WARNING,
            shard=shard,
            detail=f"shard {shard} with its {uncommitted[shard]} samples is planned but not "
            "committed" + ("." if over else "; the extraction has not finished."),
            advice="Run `extract` again; it continues with this shard.",
        )


def _as_planned(planned: dict[str, Any], found: dict[str, Any]) -> Iterator[Finding]:
    where = {"sample_id": planned["sample_id"], "shard": planned["shard"], "advice": REPAIR}
    if planned["tokens_crc32c"] != found["tokens_crc32c"]:
        yield Finding(
            kind="tokens_differ",
            detail=f"planned were tokens with CRC32C {planned['tokens_crc32c']:08x}, the index has "
            f"{found['tokens_crc32c']:08x}.",
            **where,
        )
    for name in ("token_offset", "length"):
        if planned[name] != found[name]:
            yield Finding(
                kind="length_mismatch" if name == "length" else "index_overlap",
                detail=f"its {name} is {found[name]} in the index, planned was {planned[name]}.",
                **where,
            )
