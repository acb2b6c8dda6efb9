"""Who holds what, and whether they live: looked at once, or watched until that is known."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import StrEnum

from eagle3data.storage.claims import Claims, ClaimState, list_claims, read_claim
from eagle3data.storage.root import Root

_POLL_SECONDS = 0.5


class Standing(StrEnum):
    """What is known of a claim's owner."""

    LIVE = "live"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"
    """On another machine: only watching shows whether it renews its claim."""


@dataclass(frozen=True)
class SeenClaim:
    """A claim and what is known of its owner."""

    state: ClaimState
    standing: Standing

    def __str__(self) -> str:
        owner = self.state.owner or "nobody that could be read"
        return f"{owner}, last renewed {self.state.renewed_at or 'at an unknown time'}"


def look_at_claims(root: Root) -> list[SeenClaim]:
    """All claims as they are now, by name."""
    states = (read_claim(root, *claim) for claim in sorted(list_claims(root).items()))
    return [SeenClaim(state, _standing(state)) for state in states if state is not None]


def watch_claims(root: Root, claims: Claims, *, wait: bool) -> list[SeenClaim]:
    """All claims, by name; those of other machines are watched until it is known if they live.

    That takes as long as a claim has to be silent to be taken over, at most.

    Args:
        root: of the data set.
        claims: what says, by its own clock, that a claim has been silent for too long.
        wait: False returns at once, with what is known already.
    """
    seen = {claim.state.name: claim for claim in look_at_claims(root)}
    watched = {name for name, claim in seen.items() if claim.standing is Standing.UNKNOWN}
    while watched:
        attempts = list_claims(root)
        for name in sorted(watched):
            standing = _watched(root, claims, seen[name].state, attempts.get(name))
            if standing is None:
                del seen[name]
            else:
                seen[name] = replace(seen[name], standing=standing)
        watched = {name for name in watched & set(seen) if seen[name].standing is Standing.UNKNOWN}
        if not wait:
            break
        if watched:
            time.sleep(_POLL_SECONDS)
    return list(seen.values())


def _standing(state: ClaimState) -> Standing:
    if state.owner is None or not state.owner.is_here:
        return Standing.UNKNOWN
    return Standing.ABANDONED if state.owner.is_gone else Standing.LIVE


def _watched(root: Root, claims: Claims, first: ClaimState, attempt: int | None) -> Standing | None:
    """What is known after another look at a claim's last attempt; None where it is gone."""
    state = None if attempt is None else read_claim(root, first.name, attempt)
    if attempt is None or state is None:
        return None
    if state != first:
        return Standing.LIVE
    return Standing.ABANDONED if claims.is_abandoned(first.name, attempt) else Standing.UNKNOWN
