"""The run's settings: sections, overrides, and errors that name the nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3data.schema.errors import InputError
from eagle3data.trainer.config import flat, load_config
from eagle3data.trainer.loss import Loss


def test_file_then_overrides(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("optimizer:\n  learning_rate: 2e-4\n  betas: [0.8, 0.9]\ntrain:\n  seed: 3\n")
    config = load_config(path, ["train.seed=4", "train.loss=kl", "data.eval_split=null"])
    assert config.optimizer.learning_rate == 2e-4
    assert config.optimizer.betas == (0.8, 0.9)
    assert (config.train.seed, config.train.loss, config.data.eval_split) == (4, Loss.KL, None)
    assert flat(config)["train.loss"] == "kl"


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("# nothing\n")
    assert load_config(tmp_path / "run.yaml") == load_config()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learnin_rate=1", "did you mean 'optimizer.learning_rate'"),
        ("train.token_budget=1", "did you mean 'data.token_budget'"),
        ("trian.seed=1", "did you mean 'train'"),
        ("train.seed=soon", r"train\.seed: .*soon"),
        ("train.loss=mse", r"train\.loss: .*soft_ce"),
        ("train.ttt_steps=0", r"train\.ttt_steps: .*greater than 0"),
        ("seed=1", r"section\.key=value"),
        ("train.seed", r"section\.key=value"),
        ("train.seed=[1", "YAML"),
    ],
)
def test_what_is_wrong_is_named(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(None, [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list\n", "expected sections"),
        ("train: 3\n", "train"),
        ("train: [\n", "YAML"),
        ("train:\n  warmup_share: 0.1\n", r"did you mean 'optimizer\.warmup_share'"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(tmp_path / "run.yaml")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml"):
        load_config(tmp_path / "none.yaml")
