"""`eagle3data status`: how far an extraction is, who works on it, and what failed."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from eagle3data.cli import options as o
from eagle3data.cli.console import duration, hidden, out, print_json, print_pairs

if TYPE_CHECKING:
    from eagle3data.storage.claim_watch import SeenClaim

_STANDING = {
    "live": "alive",
    "abandoned": "abandoned: the process has ended",
    "unknown": "on another machine",
}


def status(url: o.Url, json: o.Json = False) -> None:
    """Committed of planned shards and tokens, who holds which claims, and what failed.

    Example: eagle3data status ./states
    """
    from eagle3data.readers.dataset import open_dataset
    from eagle3data.storage.claim_watch import look_at_claims
    from eagle3data.storage.layout import committed_shards, read_plan
    from eagle3data.storage.ledger import read_ledger

    dataset = open_dataset(url)
    plan = read_plan(dataset.root)
    planned = len(set(plan["shard"].to_pylist()))
    committed = len(committed_shards(dataset.root))
    failures = read_ledger(dataset.root)
    claims = [_claim(seen) for seen in look_at_claims(dataset.root)]
    tokens = sum(int(length or 0) for length in plan["length"].to_pylist())
    if json:
        print_json(
            {
                "shards": {"planned": planned, "committed": committed},
                "tokens": {"planned": tokens, "committed": dataset.tokens},
                "hidden": dataset.hidden,
                "claims": claims,
                "failures": failures,
            }
        )
        return
    print_pairs(
        [
            ("shards", f"{committed:,} of {planned:,} committed"),
            ("samples", f"{len(dataset):,} committed" + hidden(dataset.hidden)),
            ("tokens", f"{dataset.tokens:,} of {tokens:,}"),
            ("failed", f"{len(failures):,} samples"),
            ("claims", f"{len(claims):,}"),
        ]
    )
    for claim in claims:
        age = "" if claim["age"] is None else f", renewed {duration(claim['age'])} ago"
        out.print(f"  {claim['name']}: {claim['owner']}{age}, {claim['state']}", markup=False)
    for failure in failures:
        out.print(f"  shard {failure['shard']}: {failure['reason']}", markup=False)


def _claim(seen: SeenClaim) -> dict[str, Any]:
    """One claim for people; its age compares two machines' clocks, so it decides nothing."""
    from eagle3data.storage.claims import STALE_AFTER

    age = _age(seen.state.renewed_at)
    state = _STANDING[seen.standing.value]
    if seen.standing.value == "unknown" and age is not None and age > STALE_AFTER:
        state += ", silent for long: abandoned unless its clock is wrong"
    return {
        "name": seen.state.name,
        "owner": str(seen.state.owner or "unreadable"),
        "age": age,
        "state": state,
    }


def _age(renewed_at: str) -> float | None:
    try:
        then = datetime.datetime.fromisoformat(renewed_at)
        return max(0.0, (datetime.datetime.now(datetime.UTC) - then).total_seconds())
    except (ValueError, TypeError):
        return None
