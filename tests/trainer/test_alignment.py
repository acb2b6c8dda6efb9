"""What the look before a run says of sets that tell little; tests/faults has the shifted ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import eagle3data as e3
from eagle3data.schema.layers import Numbering
from eagle3data.trainer.alignment import require_aligned
from eagle3data.trainer.config import load_config
from eagle3data.trainer.inputs import gather
from tests.trainer import small

SETTINGS = ["data.eval_split=null", "data.token_budget=64", "train.ttt_steps=1"]


def test_states_that_say_nothing_are_trained_on_with_a_notice(tmp_path: Path) -> None:
    target = small.target_folder(tmp_path / "target")
    manifest = e3.Manifest.for_model(
        str(target), layers=[*small.AUX, small.FINAL], numbering=Numbering.CANONICAL
    )
    random = np.random.default_rng(0)
    with e3.DatasetWriter.create(str(tmp_path / "set"), manifest) as writer:
        for number in range(12):
            length = 20 + number
            writer.append(
                e3.Sample(
                    hidden_states={
                        layer: random.standard_normal((length, small.HIDDEN)).astype(np.float16)
                        for layer in manifest.layers
                    },
                    input_ids=random.integers(0, 20, length),
                    loss_mask=np.ones(length),
                    sample_id=f"s{number}",
                    split="train",
                )
            )
    found = require_aligned(gather(str(tmp_path / "set"), str(target), load_config(None, SETTINGS)))
    assert found["verdict"] == "undetermined"
    assert "can't be told" in found["notice"]


def test_a_single_short_sample_is_no_reason_to_stop(tmp_path: Path) -> None:
    target = small.target_folder(tmp_path / "target")
    states = small.data_set(tmp_path / "set", target, samples=1)
    settings = [*SETTINGS, "data.train_split=eval"]
    found = require_aligned(gather(str(states), str(target), load_config(None, settings)))
    assert found["verdict"] == "undetermined"


def test_only_the_training_split_is_looked_at(tmp_path: Path) -> None:
    target = small.target_folder(tmp_path / "target")
    states = small.data_set(tmp_path / "set", target, samples=48)
    found = require_aligned(gather(str(states), str(target), load_config(None, SETTINGS)))
    everything = require_aligned(
        gather(str(states), str(target), load_config(None, [*SETTINGS, "data.train_split=null"]))
    )
    assert found["verdict"] == everything["verdict"] == "aligned"
    assert found["layers"]["2"]["rows"] < everything["layers"]["2"]["rows"]
