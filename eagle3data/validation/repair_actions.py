"""What a repair does: actions that can be told before they are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3data.storage.claims import Claims


@dataclass(frozen=True, kw_only=True)
class Action:
    """One step of a repair.

    Attributes:
        kind: `drop_part`, `remove_orphan`, `hide_sample`, ...
        place: object, or sample and shard.
        why: a sentence.
        do: does it; doing it again, or half of it before, does no harm.
        claim: what has to be held meanwhile; where another process holds it, nothing is done.
        shard: the shard concerned, or None.
        sample_id: the sample concerned, or None.
        samples: ids that this takes out of the set, as far as the plan knows them.
    """

    kind: str
    place: str
    why: str
    do: Callable[[], None] = field(repr=False, compare=False)
    claim: str | None = None
    shard: int | None = None
    sample_id: str | None = None
    samples: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        fixed = {"kind": self.kind, "place": self.place, "why": self.why}
        optional = {
            "shard": self.shard,
            "sample_id": self.sample_id,
            "samples": list(self.samples) or None,
        }
        return fixed | {key: value for key, value in optional.items() if value is not None}


@dataclass(kw_only=True)
class Proposal:
    """What a look at the data set came to.

    Attributes:
        actions: in the order in which they are to be done.
        left_alone: sentences: what was met and is not touched, and why.
    """

    actions: list[Action] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)


def perform(actions: Sequence[Action], claims: Claims) -> list[Action]:
    """Do the actions, holding what they need; those for which it could not be held."""
    names = dict.fromkeys(action.claim for action in actions if action.claim is not None)
    held = {name for name in names if claims.acquire(name) is not None}
    refused = []
    try:
        for action in actions:
            if action.claim is None or action.claim in held:
                action.do()
            else:
                refused.append(action)
    finally:
        for name in held:
            claims.release(name)
    return refused
