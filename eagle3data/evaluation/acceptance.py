"""The acceptance of a draft, as vLLM's own counters give it.

vLLM drafts K tokens a step and keeps those that the target would have written itself. Its counters
say how many steps there were, and how many drafted tokens were kept at each position. The
acceptance length is what a step of the target yields: 1 + kept tokens / steps. 1 means that the
draft is of no use, K + 1 that every drafted token was right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_PREFIX = "vllm:spec_decode_num_"


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Counts of drafting.

    Attributes:
        drafts: steps in which tokens were drafted.
        draft_tokens: tokens drafted.
        accepted_tokens: those that were kept.
        accepted_by_position: kept tokens at each of the K positions; a token is kept only if all
            before it are.
    """

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...]

    @classmethod
    def from_metrics(cls, metrics: Iterable[Any]) -> Acceptance:
        """Of an engine's counters since it was loaded (`LLMEngine.get_metrics()`)."""
        counters: dict[str, int] = {}
        positions: tuple[int, ...] = ()
        for metric in metrics:
            name = str(metric.name).removeprefix(_PREFIX)
            if hasattr(metric, "values"):
                if name == "accepted_tokens_per_pos":
                    positions = tuple(int(value) for value in metric.values)
            elif metric.name.startswith(_PREFIX):
                counters[name] = counters.get(name, 0) + int(metric.value)
        return cls(
            drafts=counters.get("drafts", 0),
            draft_tokens=counters.get("draft_tokens", 0),
            accepted_tokens=counters.get("accepted_tokens", 0),
            accepted_by_position=positions,
        )

    def since(self, earlier: Acceptance) -> Acceptance:
        """What was counted since an earlier look at the same engine."""
        before = earlier.accepted_by_position or (0,) * len(self.accepted_by_position)
        return Acceptance(
            drafts=self.drafts - earlier.drafts,
            draft_tokens=self.draft_tokens - earlier.draft_tokens,
            accepted_tokens=self.accepted_tokens - earlier.accepted_tokens,
            accepted_by_position=tuple(
                now - then for now, then in zip(self.accepted_by_position, before, strict=True)
            ),
        )

    @property
    def length(self) -> float | None:
        """Tokens that a step of the target yields, 1 to K + 1; None where nothing was drafted."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def rates(self) -> Sequence[float]:
        """Share of the steps in which the token at each position was kept, falling."""
        return [kept / self.drafts for kept in self.accepted_by_position] if self.drafts else []

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "acceptance_length": self.length,
            "acceptance_by_position": list(self.rates),
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
        }
