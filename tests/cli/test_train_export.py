"""`train` and `export` as a user runs them: exit codes, what is printed, what is left behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3data.cli.main import app
from eagle3data.trainer.loop import Run
from eagle3data.trainer.published import read_published
from tests.trainer import small

SETTINGS = [
    "data.token_budget=40",
    "model.draft_vocab_size=30",
    "train.ttt_steps=2",
    "train.autocast=float32",
    "train.max_steps=4",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("made")
    target = small.target_folder(root / "target")
    return str(small.data_set(root / "states", target)), str(target)


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def training(made: tuple[str, str], out: Path) -> list[str | Path]:
    return ["train", made[0], "--model", made[1], "--out", out, *SETTINGS]


def test_train_then_export(made: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "draft"
    code, printed = run(*training(made, out))
    assert code == 0, printed
    assert "held-out after" in printed
    code, printed = run("export", out, "--format", "sglang", "--out", tmp_path / "export")
    assert code == 0, printed
    assert read_published(tmp_path / "export").draft.description.aux_layers == small.AUX
    code, printed = run("export", out, "--format", "vllm", "--out", tmp_path / "export")
    assert code == 2
    assert "not empty" in printed


def test_json_is_the_summary(made: tuple[str, str], tmp_path: Path) -> None:
    command = training(made, tmp_path / "draft")
    code, printed = run(*command, "--json")
    assert code == 0
    summary = json.loads((tmp_path / "draft" / "summary.json").read_text())
    assert json.dumps(summary, indent=2) in printed


def test_dry_run_writes_nothing(made: tuple[str, str], tmp_path: Path) -> None:
    command = training(made, tmp_path / "draft")
    code, printed = run(*command, "--dry-run")
    assert code == 0
    assert "30 of 97 tokens" in printed
    assert not (tmp_path / "draft").exists()


def test_interrupted_says_how_to_continue(
    made: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_step = Run.train_step

    def interrupted_step(self: Run, packs: list[Any], **more: Any) -> None:
        whole_step(self, packs, **more)
        signal.raise_signal(signal.SIGINT)

    command = training(made, tmp_path / "draft")
    with monkeypatch.context() as patch:
        patch.setattr(Run, "train_step", interrupted_step)
        code, printed = run(*command)
    assert code == 130
    assert "step 1 of 4" in printed
    assert "same command again" in printed
    assert run(*command)[0] == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["train.ttt_stesp=2"], "did you mean 'train.ttt_steps'"),
        (["data.token_budget=10"], "token"),
        (["--config", "none.yaml"], "none.yaml"),
    ],
)
def test_what_cannot_be_is_exit_2(
    made: tuple[str, str], tmp_path: Path, changed: list[str], message: str
) -> None:
    command = training(made, tmp_path / "draft")
    code, printed = run(*command, *changed)
    assert code == 2
    assert message in printed


def test_export_of_nothing_is_exit_2(tmp_path: Path) -> None:
    code, printed = run("export", tmp_path, "--format", "vllm", "--out", tmp_path / "export")
    assert code == 2
    assert "neither a run" in printed
    code, printed = run("export", tmp_path, "--format", "vlm", "--out", tmp_path / "export")
    assert code == 2
    assert "vllm, sglang" in printed
