"""From findings to the samples that have to be hidden, and to what no repair can mend."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache, partial

from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.storage import layout
from eagle3data.storage.gathered import read_part
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import Tombstone, bury, list_tombstones, sample_key
from eagle3data.validation.findings import Finding, Report
from eagle3data.validation.repair_actions import Action, Proposal
from eagle3data.validation.validate import part_digest

_OF_THE_PROMPTS = {"mask_empty", "mask_shifted", "mask_wrong_role"}
"""The prompts are so: a sample done again would be the same."""
_OF_THE_STORE = {"object_unreadable"}
"""An error of the disk or the network: it may pass, and says nothing of the bytes."""
_MENDED_IN_PLACE = {"array_metadata", "index_changed", "index_corrupt", "ledger_corrupt"}
"""Findings about the set that the look at its index has actions of its own for."""
_OF_THE_PLAN = {"plan_corrupt", "plan_missing"}
_OF_THE_CALLER = {"wrong_model", "wrong_tokenizer"}


@dataclass(kw_only=True)
class Judgement(Proposal):
    """What is to be done about findings.

    Attributes:
        beyond: errors that no repair mends.
    """

    beyond: list[Finding] = field(default_factory=list)


def judge(root: Root, report: Report, broken: Collection[int], *, is_planned: bool) -> Judgement:
    """Which samples the errors of a report condemn.

    An error of a shard condemns every sample of it: objects are indexed at their end, so of one
    that is cut short or missing nothing can be read.

    Args:
        root: of the data set.
        report: of `validate`, fresh or saved.
        broken: shards whose index part is to be dropped.
        is_planned: `extract` made the plan; `DatasetWriter`'s can be made anew from the index.

    Raises:
        InputError: the report is about another model than the set's.
    """
    _require_own_model(report)
    found = Judgement()
    errors = report.errors
    if any(finding.kind == "index_changed" and finding.shard is None for finding in errors):
        errors = [finding for finding in errors if finding.sample_id is None]
        found.left_alone.append(
            "Samples: they were read by an index/all.arrow that is not what the parts hold, so "
            "the fault may be its own. Look again once it is made anew."
        )
    committed = set(layout.committed_shards(root)) - set(broken)
    hidden = set(list_tombstones(root))
    digest_now = cache(partial(part_digest, root))
    reasons: dict[tuple[int, str], list[Finding]] = {}
    for finding in errors:
        shard = finding.shard
        if finding.kind in _OF_THE_PROMPTS | _OF_THE_STORE:
            found.beyond.append(finding)
        elif finding.kind in _OF_THE_PLAN:
            found.beyond += [finding] if is_planned else []
        elif shard is None:
            found.beyond += [finding] if finding.kind not in _MENDED_IN_PLACE else []
        elif shard not in committed:
            continue  # it is done again as a whole
        elif report.parts.get(shard) != digest_now(shard):
            found.left_alone.append(f"shard {shard} was done again since the report was made.")
        else:
            for name in _samples(root, finding, shard):
                if Tombstone(shard, sample_key(name)) not in hidden:
                    reasons.setdefault((shard, name), []).append(finding)
    found.left_alone = list(dict.fromkeys(found.left_alone))
    found.actions = [_hide(root, *key, reasons[key]) for key in sorted(reasons)]
    return found


def _require_own_model(report: Report) -> None:
    wrong = next((one for one in report.errors if one.kind in _OF_THE_CALLER), None)
    if wrong is not None:
        raise InputError(
            f"{report.url} was checked against another model than it was made for, so nothing that "
            f"was found counts: {wrong.detail} {wrong.advice or ''}"
        )


def _samples(root: Root, finding: Finding, shard: int) -> list[str]:
    if finding.sample_id is not None:
        return [finding.sample_id]
    try:
        rows = read_part(root, shard).rows
    except CorruptionError:
        return []  # gone since
    return [str(name) for name in rows["sample_id"].to_pylist()]


def _hide(root: Root, shard: int, name: str, findings: list[Finding]) -> Action:
    kind, detail = findings[0].kind, findings[0].detail
    detail = detail.removeprefix(f"{kind}: ")
    more = f" ({len(findings) - 1} more findings)" if len(findings) > 1 else ""
    return Action(
        kind="hide_sample",
        place=f"sample {name}, shard {shard}",
        why=f"{kind}: {detail}{more}",
        do=partial(_bury, root, shard, name, findings[0]),
        shard=shard,
        sample_id=name,
    )


def _bury(root: Root, shard: int, name: str, finding: Finding) -> None:
    bury(root, shard=shard, sample_id=name, kind=finding.kind, reason=finding.detail)
