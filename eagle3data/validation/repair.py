"""`repair`: put right what can be, hide what is damaged, and say what is to be done again.

First what lies there without belonging to anybody and the index, then the samples that
`validate` finds damaged. No committed byte is changed: a damaged sample gets a tombstone, and
`extract` does it again in another shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.claim_watch import Standing, watch_claims
from eagle3data.storage.claims import Claims, shard_name
from eagle3data.storage.committed import gathered_pieces
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import Tombstone, list_tombstones, read_tombstone, sample_key
from eagle3data.validation import damaged_index, leftovers
from eagle3data.validation.condemned import judge
from eagle3data.validation.findings import Finding, Report
from eagle3data.validation.repair_actions import Action, Proposal, perform
from eagle3data.validation.stage import Stage
from eagle3data.validation.validate import validate

Tell = Callable[[Sequence[Action]], None]


@dataclass(kw_only=True)
class RepairReport:
    """What a repair did, or would do.

    Attributes:
        url: the data set.
        dry_run: nothing was done.
        actions: done; with `dry_run`, to be done.
        left_alone: sentences: what was met and not touched, and why.
        beyond: errors that no repair mends.
        samples_to_redo: samples that are hidden, or whose plan went with their shard, and that no
            plan segment does again yet.
        shards_to_redo: planned shards without an index part.
        is_planned: `extract` does them again; else who made the set has to append them again.
    """

    url: str
    dry_run: bool
    actions: list[Action] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    beyond: list[Finding] = field(default_factory=list)
    samples_to_redo: int = 0
    shards_to_redo: int = 0
    is_planned: bool = True

    @property
    def ok(self) -> bool:
        """Whether nothing is left for a repair to do, and nothing that none can mend."""
        return not self.beyond and not (self.dry_run and self.actions)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "url": self.url,
            "dry_run": self.dry_run,
            "ok": self.ok,
            "actions": [action.as_dict() for action in self.actions],
            "left_alone": self.left_alone,
            "beyond_repair": [finding.as_dict() for finding in self.beyond],
            "to_redo": {
                "samples": self.samples_to_redo,
                "shards": self.shards_to_redo,
                "by": "extract" if self.is_planned else "DatasetWriter",
            },
        }


def repair(
    url: str,
    *,
    level: str = "full",
    model: str | None = None,
    revision: str | None = None,
    report: Report | None = None,
    dry_run: bool = False,
    wait: bool = True,
    tell: Tell | None = None,
    stage: Stage | None = None,
) -> RepairReport:
    """Repair a data set; a second repair finds nothing to do.

    What living processes work on is left alone.

    Args:
        url: its root.
        level: of `validate`, whose errors say which samples to hide.
        model: as `validate` takes it.
        revision: as `validate` takes it.
        report: of an earlier `validate`, in place of a new one; what it says of shards that were
            done again since is ignored.
        dry_run: change nothing.
        wait: watch claims of other machines until it is known whether their owners live, at most
            as long as they have to be silent to be taken over; else such claims are left alone.
        tell: called with actions before they are done.
        stage: shows progress; see `validate`.

    Raises:
        InputError: no data set there, no such level or model, or another model than the set's.
        ManifestError: a manifest that can't be read.
        SpaceError: the place is full.
    """
    root = Root(url)
    manifest = layout.read_manifest(root)
    if report is not None and Root(report.url).path != root.path:
        raise InputError(
            f"the report is of {report.url}, not of {url}. Run `eagle3data validate {url} --json`."
        )
    done = RepairReport(url=url, dry_run=dry_run, is_planned=manifest.plan_digest is not None)
    with Claims(root) as claims:
        parts = _repair_storage(root, manifest, claims, done, tell, wait=wait)
        report = report or validate(url, level, model, revision, stage=stage)
        judgement = judge(root, report, parts.broken, is_planned=done.is_planned)
        done.beyond = judgement.beyond
        _settle(judgement, claims, done, tell)
    if not dry_run:
        root.sweep()
    if dry_run and parts.broken:
        done.left_alone.append(
            "An index part is broken, so not every sample may have been looked at: a repair drops "
            "the part first, then looks."
        )
    _count_redo(root, done, parts.broken)
    return done


def _repair_storage(
    root: Root,
    manifest: Manifest,
    claims: Claims,
    done: RepairReport,
    tell: Tell | None,
    *,
    wait: bool,
) -> damaged_index.PartsSeen:
    # In this order: see `leftovers.remove_orphans`.
    objects = leftovers.list_array_objects(root, manifest)
    seen = watch_claims(root, claims, wait=wait)
    parts = damaged_index.read_all_parts(root)
    _require_no_lost_parts(root, {*parts.digests, *parts.broken})
    plan = damaged_index.read_segments(root)
    found = Proposal()
    found.actions += damaged_index.drop_broken_parts(root, parts, plan.rows)
    found.actions += leftovers.remove_orphans(root, manifest, objects, parts.digests)
    if plan.is_by_shard(manifest):
        found.actions += leftovers.remove_segments(root, parts.digests)
    found.actions += damaged_index.rewrite_segments(root, manifest, parts, plan)
    leftovers.release_claims(seen, found)
    leftovers.remove_temporary(root, found)
    leftovers.abort_uploads(root, found)
    found.actions += damaged_index.remove_ledger_entries(root)
    found.actions += damaged_index.rewrite_documents(root, manifest)
    busy = {claim.state.name for claim in seen if claim.standing is not Standing.ABANDONED}
    found.actions = [action for action in found.actions if action.claim not in busy]
    if not any(shard_name(shard) in busy for shard in parts.broken):
        found.actions += damaged_index.regather(root, parts, unfinished=bool(busy))
    found.left_alone += _unreadable_tombstones(root)
    _settle(found, claims, done, tell)
    return parts


def _require_no_lost_parts(root: Root, there: Collection[int]) -> None:
    """Refuse to take objects for orphans only because the end of a copy is missing.

    Raises:
        InputError: `index/all.arrow` holds shards whose parts are gone.
    """
    held = {int(shard) for piece in gathered_pieces(root) for shard in piece.parts.shards}
    lost = sorted(held - set(there))
    if lost:
        raise InputError(
            f"index/all.arrow of {root.url} holds {len(lost)} shards whose index parts are gone "
            f"(shard {lost[0]} is the first). Without them their objects would be removed. Put the "
            "parts back (an unfinished download lacks them), or delete index/all.arrow to give "
            "these shards up; then run repair again."
        )


def _settle(found: Proposal, claims: Claims, done: RepairReport, tell: Tell | None) -> None:
    """Tell what was found and, unless this is a dry run, do it."""
    done.left_alone += found.left_alone
    if tell is not None and found.actions:
        tell(found.actions)
    refused = [] if done.dry_run else perform(found.actions, claims)
    done.actions += [action for action in found.actions if action not in refused]
    done.left_alone += [
        f"{action.place}: another process began to work on it meanwhile." for action in refused
    ]


def _unreadable_tombstones(root: Root) -> list[str]:
    sentences = []
    for tombstone in list_tombstones(root):
        try:
            read_tombstone(root, tombstone)
        except CorruptionError as error:
            sentences.append(f"{tombstone.name}: {error.args[0]}.")
    return sentences


def _count_redo(root: Root, done: RepairReport, broken: Collection[int]) -> None:
    """Count what `extract` has to do; in a dry run, as if everything had been done."""
    hidden = set(list_tombstones(root)) | {
        Tombstone(action.shard, sample_key(action.sample_id))
        for action in done.actions
        if action.kind == "hide_sample" and action.shard is not None and action.sample_id
    }
    committed = set(layout.committed_shards(root)) - set(broken)
    gone = {action.shard for action in done.actions if action.kind == "remove_segment"}
    alive: dict[str, bool] = {}
    missing = set()
    planned = damaged_index.planned_samples(damaged_index.read_segments(root).rows)
    for shard, names in planned.items():
        if shard not in committed | gone:
            missing.add(shard)
        for name in names if shard not in gone else ():
            is_alive = Tombstone(shard, sample_key(name)) not in hidden
            alive[name] = is_alive or alive.get(name, False)
    for action in done.actions:
        if action.kind == "drop_part" and action.shard in gone:
            alive = dict.fromkeys(action.samples, False) | alive
    done.samples_to_redo = sum(not is_alive for is_alive in alive.values())
    done.shards_to_redo = len(missing)
