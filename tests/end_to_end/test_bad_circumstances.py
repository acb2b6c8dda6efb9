"""Bad arguments and places: one paragraph, exit code 2, nothing damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import CONVERSATIONS, Command


def _one_paragraph(stderr: str) -> bool:
    return "Traceback" not in stderr and stderr.count("\n") <= 8


@pytest.fixture
def refused(command: Command) -> Callable[..., str]:
    def run(*words: str | Path) -> str:
        done = command(*words)
        assert done.returncode == 2, done.stderr + done.stdout
        assert _one_paragraph(done.stderr), done.stderr
        return done.stderr

    return run


def test_model_without_a_tokenizer(
    smollm2: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(smollm2 / "config.json", bare)
    said = refused("prepare", CONVERSATIONS, "--model", bare, "--out", tmp_path / "p.arrow")
    assert "tokenizer" in said
    assert not (tmp_path / "p.arrow").exists()


def test_output_that_holds_something_else(
    smollm2: Path, prompts: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    said = refused("extract", prompts, "--model", smollm2, "--out", tmp_path)
    assert "holds something else (thesis.tex)" in said
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_other_prompts_layers_and_models(
    smollm2: Path, prompts: Path, states: str, tmp_path: Path, refused: Callable[..., str],
    command: Command,
) -> None:  # fmt: skip
    lines = CONVERSATIONS.read_text().splitlines()
    (tmp_path / "reversed.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    other = tmp_path / "reversed.arrow"
    done = command("prepare", tmp_path / "reversed.jsonl", "--model", smollm2, "--out", other)
    assert done.returncode == 0
    assert "another order" in refused("extract", other, "--model", smollm2, "--out", states)
    said = refused(
        "extract", prompts, "--model", smollm2, "--out", states, "--layers", "3,15,27,30"
    )
    assert "capture.layers: [2, 15, 27, 30], [3, 15, 27, 30]" in said
    changed = tmp_path / "changed"
    shutil.copytree(smollm2, changed)
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({**config, "rope_theta": 5}))
    said = refused("extract", prompts, "--model", changed, "--out", states)
    assert "target.config_digest" in said
    (changed / "chat_template.jinja").write_text("{{ messages }}")
    said = refused("extract", prompts, "--model", changed, "--out", tmp_path / "new")
    assert "another tokenizer or chat template" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "2,15,27,29"], "final layer 30 is not captured"),
        (["--layers", "2,31"], "does not exist"),
        (["--engine", "tgi"], "--engine tgi"),
        (["--codec", "zip"], "zip"),
        (["--dtype", "float8"], "float8"),
        (["--shards", "5"], "A:B"),
        (["--shards", "90:99"], "not within the plan"),
        (["--shard-tokens", "8"], "less than the longest sample"),
    ],
)
def test_bad_arguments(
    smollm2: Path, prompts: Path, tmp_path: Path, refused: Callable[..., str],
    words: list[str], message: str,
) -> None:  # fmt: skip
    said = refused("extract", prompts, "--model", smollm2, "--out", tmp_path / "set", *words)
    assert message in said
    assert not (tmp_path / "set" / "index").exists()


def test_the_environment_names_the_engine(
    smollm2: Path, prompts: Path, tmp_path: Path, refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("EAGLE3DATA_ENGINE", "tgi")
    words = ("extract", prompts, "--model", smollm2, "--out", tmp_path / "set")
    assert "--engine tgi" in refused(*words)
    assert "--engine sglang" in refused(*words, "--engine", "sglang")


def test_files_that_are_something_else(
    smollm2: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "notes.arrow").write_text("no table")
    refused("extract", tmp_path / "notes.arrow", "--model", smollm2, "--out", tmp_path / "set")
    refused("extract", tmp_path / "absent.arrow", "--model", smollm2, "--out", tmp_path / "set")
    refused("info", tmp_path / "nowhere")
    refused("show", tmp_path / "nowhere", "0")
    refused("validate", tmp_path / "nowhere")
