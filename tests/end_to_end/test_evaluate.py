"""A draft in a real vLLM: it loads what `export` writes, drafts, and answers stay the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.extractor.vllm_processes import needs_vllm
from tests.support import eagle3data

pytestmark = needs_vllm

_SETTINGS = (
    "data.token_budget=512",
    "data.eval_split=null",
    "train.max_steps=40",
    "optimizer.learning_rate=2e-3",
    "train.ttt_steps=2",
    "model.draft_vocab_size=4096",
)


@pytest.fixture(scope="module")
def run(states: str, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that was hardly trained: enough to have a token accepted now and then."""
    out = tmp_path_factory.mktemp("evaluate") / "run"
    done = eagle3data("train", states, "--model", smollm2, "--out", out, *_SETTINGS)
    assert done.returncode == 0, done.stderr
    return out


_ROWS = [
    {"category": "talk", "turns": ["Say hello.", "Say it in French."]},
    {"category": "count", "prompt": "Count from one to twenty in words."},
    {"category": "count", "prompt": "Not asked: the limit is one a category."},
    {"text": "no question in here"},
]
_HOW = ("--json", "--dtype", "float32", "--max-new-tokens", "24", "--limit", "1")


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("questions") / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in _ROWS))
    return file


@pytest.fixture(scope="module")
def found(run: Path, smollm2: Path, questions: Path) -> dict[str, Any]:
    """What the run's draft was measured to do, in the layout that vLLM calls its own."""
    done = eagle3data("evaluate", run, "--model", smollm2, "--prompts", questions, *_HOW)
    assert done.returncode == 0, done.stderr
    assert f"{questions}:4" in done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_run_is_measured_and_answers_stay_the_same(found: dict[str, Any]) -> None:
    assert set(found["categories"]) == {"talk", "count"}
    talk, count = found["categories"]["talk"], found["categories"]["count"]
    assert (talk["conversations"], talk["answers"]) == (1, 2)
    assert (count["conversations"], count["answers"]) == (1, 1)
    for part in (talk, count, found):
        assert part["drafts"] > 0
        assert part["draft_tokens"] == 3 * part["drafts"]
        assert part["acceptance_length"] == 1 + part["accepted_tokens"] / part["drafts"]
        rates = part["acceptance_by_position"]
        assert len(rates) == 3
        assert rates == sorted(rates, reverse=True)
        assert sum(rates) == pytest.approx(part["acceptance_length"] - 1)
        # In float32 a draft changes nothing, however bad it is.
        assert part["same_answers_without_draft"] == part["answers"]
    assert found["rejected"] == 1
    # Every step yields one token and those that were kept; an answer's first comes with its prompt.
    steps = found["drafts"] + found["accepted_tokens"] + found["answers"]
    assert abs(found["tokens"] - steps) <= 3 * found["answers"]


def test_the_layout_of_speculators_drafts_the_same(
    found: dict[str, Any], run: Path, smollm2: Path, questions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "speculator"
    done = eagle3data("export", run, "--format", "speculators", "--model", smollm2, "--out", out)
    assert done.returncode == 0, done.stderr
    words = ("--model", smollm2, "--prompts", questions, "--no-compare", *_HOW)
    done = eagle3data("evaluate", out, *words)
    assert done.returncode == 0, done.stderr
    other = json.loads(done.stdout)
    # Where nothing is ever kept, a draft that is read wrongly looks like any other.
    assert found["accepted_tokens"] > 0
    for name in ("drafts", "draft_tokens", "accepted_tokens", "acceptance_by_position", "tokens"):
        assert other[name] == found[name]


def test_bad_input_is_told(smollm2: Path, tmp_path: Path) -> None:
    empty, prompts = tmp_path / "empty", tmp_path / "prompts.jsonl"
    empty.mkdir()
    prompts.write_text('{"text": "no question in here"}\n')
    done = eagle3data("evaluate", empty, "--model", smollm2, "--prompts", prompts)
    assert done.returncode == 2
    assert "no conversation to answer" in done.stderr
    prompts.write_text('{"prompt": "Hello"}\n')
    done = eagle3data("evaluate", empty, "--model", smollm2, "--prompts", prompts)
    assert done.returncode == 2
    assert str(empty) in done.stderr
    taken = ("--engine-arg", "speculative_config={}")
    done = eagle3data("evaluate", empty, "--model", smollm2, "--prompts", prompts, *taken)
    assert done.returncode == 2
