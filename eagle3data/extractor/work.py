"""Which prompt goes where, over all plan segments: what this extraction has to do.

The first segment holds all prompts in order. `--append` adds a segment for another prompts
file, and samples that were tombstoned get one for themselves; both open new shards, since
committed ones never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from eagle3data.extractor.plan import Plan
from eagle3data.schema.errors import MismatchError
from eagle3data.schema.index import plan_digest, plan_rows
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import resize_arrays
from eagle3data.storage.claims import MANIFEST, Claims
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import Tombstone, list_tombstones, sample_key
from eagle3data.writers.data_set import write_plan


@dataclass(frozen=True)
class Assignment:
    """One prompt's place: its row in the prompts file, and its first token on the axis."""

    row: int
    token_offset: int


@dataclass(kw_only=True)
class Work:
    """What an extraction has to do, shard by shard.

    Attributes:
        shards: assignments in token order, by shard.
        lengths: tokens of every prompt.
        repeated: prompts of an appended file that the set held already.
    """

    shards: dict[int, list[Assignment]]
    lengths: Sequence[int] = field(repr=False)
    repeated: int = 0

    def tokens_of(self, shard: int) -> int:
        """Tokens of the samples in a shard."""
        return sum(self.lengths[assignment.row] for assignment in self.shards[shard])

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return sum(map(self.tokens_of, self.shards))


def settle_work(root: Root, claims: Claims, plan: Plan, *, append: bool) -> Work:
    """Write the plan segments that are missing, and list the work.

    Every worker that shares the set comes to the same list.

    Raises:
        MismatchError: the set's plan is another.
    """
    if not append:
        write_plan(root, 0, plan.table, plan.facts)
    with claims.holding(MANIFEST):
        repeated = _append_segment(root, plan) if append else 0
        _redo_segment(root, plan)
    rows = {name: row for row, name in enumerate(_names(plan.table))}
    shards: dict[int, list[Assignment]] = {}
    foreign: set[int] = set()
    table = layout.read_plan(root)
    for name, shard, offset in zip(
        _names(table), _numbers(table, "shard"), _numbers(table, "token_offset"), strict=True
    ):
        if name in rows:
            shards.setdefault(shard, []).append(Assignment(rows[name], offset))
        else:
            foreign.add(shard)
    return Work(
        shards={shard: found for shard, found in sorted(shards.items()) if shard not in foreign},
        lengths=_numbers(plan.table, "length"),
        repeated=repeated,
    )


def require_appendable(there: Manifest, here: Manifest) -> None:
    """Refuse to append what another model or capture would make.

    Raises:
        MismatchError: naming what differs.
    """
    differences = [
        difference
        for difference in there.differences(here)
        if not difference.startswith("plan_digest:")
    ]
    if differences:
        raise MismatchError(
            "the data set and what would be appended differ in "
            f"{'; '.join(differences)}. Use the arguments of the first run, or another --out."
        )


def _append_segment(root: Root, plan: Plan) -> int:
    """Plan the prompts that no segment holds; how many some segment held already."""
    planned = set(_names(layout.read_plan(root)))
    if any(facts.get("prompts") == plan.prompts_digest for facts in layout.plan_facts(root)):
        return 0
    fresh = [
        row for row, name in enumerate(plan.table["sample_id"].to_pylist()) if name not in planned
    ]
    _add_segment(root, plan, fresh, {"prompts": plan.prompts_digest})
    return plan.table.num_rows - len(fresh)


def _redo_segment(root: Root, plan: Plan) -> None:
    """Plan tombstoned samples of these prompts again, unless a later segment has done so."""
    dead = set(list_tombstones(root))
    if not dead:
        return
    table = layout.read_plan(root)
    alive: dict[str, bool] = {}
    for shard, name in zip(_numbers(table, "shard"), _names(table), strict=True):
        is_alive = Tombstone(shard, sample_key(name)) not in dead
        alive[name] = is_alive or alive.get(name, False)
    lost = [row for row, name in enumerate(_names(plan.table)) if not alive.get(name, True)]
    _add_segment(root, plan, lost, {})


def _add_segment(root: Root, plan: Plan, rows: list[int], facts: Mapping[str, str]) -> None:
    if not rows:
        return
    segments = layout.plan_facts(root)
    first = max(int(found["first_shard"]) + int(found["shards"]) for found in segments)
    manifest = plan.manifest
    table = _placed(plan, rows, first)
    last = max(_numbers(table, "shard"))
    resize_arrays(root, manifest, last + 1)
    digest = plan_digest(manifest.identity, table)
    placed = {"digest": digest, "first_shard": first, "shards": last + 1 - first, **facts}
    write_plan(root, len(segments), table, placed)


def _placed(plan: Plan, rows: list[int], first_shard: int) -> pa.Table:
    names, lengths = _names(plan.table), _numbers(plan.table, "length")
    checksums = _numbers(plan.table, "tokens_crc32c")
    return plan_rows(
        plan.manifest.storage.axis,
        [names[row] for row in rows],
        [lengths[row] for row in rows],
        [checksums[row] for row in rows],
        first_shard,
    )


def _names(table: pa.Table) -> list[str]:
    return [str(name) for name in table["sample_id"].to_pylist()]


def _numbers(table: pa.Table, column: str) -> list[int]:
    return list(table[column].to_numpy().tolist())
