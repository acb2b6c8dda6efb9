"""A look at a data set in words, and as plain data: what `status` prints and `view` shows."""

from __future__ import annotations

import datetime
import time
from typing import Any

from eagle3data.readers.progress import Progress
from eagle3data.schema.words import duration, hidden, rate, size
from eagle3data.storage.claim_watch import SeenClaim
from eagle3data.storage.claims import STALE_AFTER

_MOST_FAILURES = 10
_STANDING = {"live": "alive", "unknown": "on another machine"}


def facts(progress: Progress) -> dict[str, Any]:
    """What `status --json` prints."""
    planned, committed, speed = progress.planned, progress.committed, progress.speed
    return {
        "url": progress.url,
        "shards": {"planned": planned.shards, "committed": committed.shards},
        "samples": {"planned": planned.samples, "committed": committed.samples},
        "tokens": {"planned": planned.tokens, "committed": committed.tokens},
        "hidden": progress.hidden,
        "complete": progress.is_complete,
        "tokens_per_second": {"now": speed.now, "average": speed.average},
        "last_commit": speed.last_commit,
        "seconds_left": progress.seconds_left,
        "bytes": progress.bytes,
        "free_bytes": progress.free,
        "free_bytes_at_end": progress.free_at_end,
        "claims": [
            {
                "name": claim.state.name,
                "owner": _owner(claim),
                "age": claim_age(claim),
                "state": standing(claim),
                "stale": bool(why_stale(claim)),
            }
            for claim in progress.claims
        ],
        "failures": progress.failures,
        "unreadable": progress.unreadable,
    }


def pairs(progress: Progress) -> list[tuple[str, str]]:
    """Everything that matters, by name."""
    committed, planned = progress.committed, progress.planned
    stale = sum(1 for claim in progress.claims if why_stale(claim))
    return [
        ("shards", f"{committed.shards:,} of {planned.shards:,} committed"),
        ("samples", f"{committed.samples:,} committed" + hidden(progress.hidden)),
        ("tokens", f"{committed.tokens:,} of {planned.tokens:,}{_share(progress)}"),
        ("speed", speed_words(progress)),
        ("left", left_words(progress)),
        ("disk", disk_words(progress)),
        ("failed", f"{len(progress.failures):,} samples"),
        ("claims", f"{len(progress.claims):,}" + (f", {stale:,} of them stale" if stale else "")),
    ]


def _share(progress: Progress) -> str:
    """Per cent of the planned tokens; never 100 before it is all."""
    if not progress.planned.tokens:
        return ""
    return f" ({100 * progress.committed.tokens // progress.planned.tokens} %)"


def details(progress: Progress) -> list[str]:
    """A sentence a claim, a part that can't be read, and the latest failures."""
    lines = [claim_words(claim) for claim in progress.claims]
    lines += [
        f"shard {shard}: its index part can't be read; `eagle3data repair` mends that"
        for shard in progress.unreadable
    ]
    failures = progress.failures[-_MOST_FAILURES:]
    lines += [f"shard {failure['shard']}: {failure['reason']}" for failure in failures]
    if len(progress.failures) > len(failures):
        more = len(progress.failures) - len(failures)
        lines.append(f"and {more:,} more failures; --json lists them all")
    return lines


def speed_words(progress: Progress) -> str:
    """Tokens a second, now and on average."""
    if not progress.committed.shards:
        return "no shard committed yet"
    speed = progress.speed
    average = "" if speed.average is None else f"{rate(speed.average)} tokens/s on average"
    if progress.is_complete:
        return average or "not known: too few commits"
    if speed.now == 0 and speed.last_commit is not None:
        now = f"nothing committed for {duration(max(0.0, time.time() - speed.last_commit))}"
    else:
        now = "" if speed.now is None else f"{rate(speed.now)} tokens/s now"
    return ", ".join(filter(None, [now, average])) or "not known yet"


def left_words(progress: Progress) -> str:
    """Time and tokens that are left."""
    if progress.is_complete:
        return "nothing"
    if not progress.is_planned:
        return "not known: samples are planned as they come"
    if progress.seconds_left is None:
        return f"{progress.tokens_left:,} tokens"
    return f"{duration(progress.seconds_left)} for {progress.tokens_left:,} tokens"


def disk_words(progress: Progress) -> str:
    """Room now and at the end."""
    if progress.free is None:
        return "an object store"
    free = f"{size(progress.free)} free"
    if not has_room(progress):
        return f"{free}: TOO LITTLE for the rest"
    at_end = progress.free_at_end
    return free if at_end is None or progress.is_complete else f"{free}, {size(at_end)} at the end"


def has_room(progress: Progress) -> bool:
    """Whether the rest fits; true where nobody knows."""
    at_end = progress.free_at_end
    return at_end is None or progress.is_complete or at_end > 0


def claim_words(claim: SeenClaim) -> str:
    """Who holds what, since when, and whether that process lives."""
    age = claim_age(claim)
    renewed = "" if age is None else f", renewed {duration(age)} ago"
    return f"{claim.state.name}: {_owner(claim)}{renewed}, {standing(claim)}"


def _owner(claim: SeenClaim) -> str:
    return str(claim.state.owner or "unreadable")


def standing(claim: SeenClaim) -> str:
    """Whether its process is alive, elsewhere or gone."""
    stale = why_stale(claim)
    return f"stale: {stale}" if stale else _STANDING[claim.standing.value]


def why_stale(claim: SeenClaim) -> str:
    """Why a claim is stale, or empty; its age compares two clocks, so that decides nothing."""
    owner, age = claim.state.owner, claim_age(claim)
    if claim.standing.value == "abandoned":
        why = "its process has ended" if owner and owner.is_gone else "silent for too long"
        return f"{why}, the next worker takes it over"
    if claim.standing.value == "unknown" and age is not None and age > STALE_AFTER:
        return "on another machine and silent for long, unless a clock is wrong"
    return ""


def claim_age(claim: SeenClaim) -> float | None:
    """Seconds since it was renewed, by its owner's clock; None where that can't be read."""
    try:
        then = datetime.datetime.fromisoformat(claim.state.renewed_at)
        return max(0.0, (datetime.datetime.now(datetime.UTC) - then).total_seconds())
    except (ValueError, TypeError):
        return None
