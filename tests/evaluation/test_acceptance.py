"""What vLLM's counters say of a draft."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eagle3data.evaluation.acceptance import Acceptance
from eagle3data.evaluation.evaluate import Evaluation, Part


def _metrics(drafts: int, drafted: int, kept: list[int]) -> list[Any]:
    """As `LLMEngine.get_metrics` gives them, others among them."""
    name = "vllm:spec_decode_num_"
    return [
        SimpleNamespace(name="vllm:num_requests_running", value=2.0),
        SimpleNamespace(name=f"{name}drafts", value=drafts),
        SimpleNamespace(name=f"{name}draft_tokens", value=drafted),
        SimpleNamespace(name=f"{name}accepted_tokens", value=sum(kept)),
        SimpleNamespace(name=f"{name}accepted_tokens_per_pos", values=kept),
        SimpleNamespace(name="vllm:e2e_request_latency_seconds", count=3, sum=1.0, buckets={}),
    ]


def test_length_and_rates() -> None:
    found = Acceptance.from_metrics(_metrics(10, 30, [8, 4, 1]))
    assert found.length == pytest.approx(1 + 13 / 10)
    assert found.rates == pytest.approx([0.8, 0.4, 0.1])


def test_what_was_counted_since() -> None:
    early = Acceptance.from_metrics(_metrics(10, 30, [8, 4, 1]))
    late = Acceptance.from_metrics(_metrics(14, 42, [9, 5, 1]))
    assert late.since(early) == Acceptance(
        drafts=4, draft_tokens=12, accepted_tokens=2, accepted_by_position=(1, 1, 0)
    )


def test_nothing_drafted_is_no_length() -> None:
    found = Acceptance.from_metrics([])
    assert found.length is None
    assert found.rates == []
    assert found.since(Acceptance.from_metrics([])) == found


def test_the_whole_weighs_by_steps_and_tokens() -> None:
    def part(drafts: int, kept: int, tokens: int, seconds: float) -> Part:
        return Part(
            conversations=1,
            answers=2,
            tokens=tokens,
            seconds=seconds,
            tokens_without=tokens,
            seconds_without=2 * seconds,
            same=1,
            acceptance=Acceptance(
                drafts=drafts,
                draft_tokens=2 * drafts,
                accepted_tokens=kept,
                accepted_by_position=(kept, 0),
            ),
        )

    found = Evaluation(
        draft="d",
        model="m",
        num_speculative_tokens=2,
        parts={"a": part(10, 10, 100, 1.0), "b": part(90, 0, 300, 9.0)},
        rejected=0,
    )
    whole = found.whole
    assert whole.acceptance.length == pytest.approx(1.1)
    assert whole.acceptance.rates == pytest.approx([0.1, 0.0])
    assert whole.speed == pytest.approx(40)
    assert whole.speed_without == pytest.approx(20)
    assert (whole.answers, whole.same) == (4, 2)
    assert found.as_dict()["categories"]["a"]["acceptance_length"] == 2.0


def test_a_part_not_compared_leaves_the_whole_open() -> None:
    nothing = Acceptance.from_metrics([])
    parts = {"a": Part(acceptance=nothing, same=1), "b": Part(acceptance=nothing)}
    found = Evaluation(draft="d", model="m", num_speculative_tokens=2, parts=parts, rejected=0)
    assert found.whole.same is None
    assert found.whole.speed_without is None
