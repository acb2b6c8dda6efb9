"""Sets that are one row off are refused by the trainer before its first step, unless forced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data.storage.model_weights import load_embeddings
from eagle3data.trainer.alignment import MisalignedError, require_aligned
from eagle3data.trainer.config import TrainConfig, load_config
from eagle3data.trainer.inputs import gather
from eagle3data.trainer.loop import train
from tests.faults.capture import LAYERS, Captured, write

AUX, FINAL = LAYERS[:-1], LAYERS[-1]
SETTINGS = ("data.train_split=null", "data.eval_split=null", "data.token_budget=256",
            "train.ttt_steps=1", "train.max_steps=1", "model.draft_vocab_size=500",
            "model.intermediate_size=64")  # fmt: skip


def config(*more: str) -> TrainConfig:
    return load_config(None, [*SETTINGS, *more])


def shifted(captured: list[Captured], by: int, layers: list[int]) -> list[Captured]:
    """Row t gets the state of token t + by; beyond a sample's ends the last one is repeated."""

    def moved(states: Any) -> Any:
        return states[np.clip(np.arange(len(states)) + by, 0, len(states) - 1)]

    return [
        {**one, "states": {k: moved(v) if k in layers else v for k, v in one["states"].items()}}
        for one in captured
    ]


def test_a_clean_set_is_found_aligned_at_every_layer(clean_folder: Path, smollm2: Path) -> None:
    found = require_aligned(gather(str(clean_folder), str(smollm2), config()))
    assert (found["verdict"], found["notice"]) == ("aligned", None)
    assert {layer: facts["shift"] for layer, facts in found["layers"].items()} == {
        str(layer): 0 for layer in LAYERS
    }
    assert found["layers"]["30"]["probe"] == "next token"


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("layers", [LAYERS, AUX, [FINAL], [15]], ids=["all", "aux", "final", "one"])
def test_a_shifted_set_is_refused(
    captured: list[Captured], smollm2: Path, tmp_path: Path, by: int, layers: list[int]
) -> None:
    url = str(write(tmp_path / "set", smollm2, shifted(captured, by, layers)))
    with pytest.raises(MisalignedError, match=r"data\.allow_misaligned=true") as refusal:
        train(url, str(smollm2), tmp_path / "run", config())
    said = str(refusal.value)
    assert f"row t holds the state of token t{by:+d}" in said
    if layers == LAYERS:
        assert "at every layer" in said
    else:
        assert [layer for layer in LAYERS if f"at layer {layer} row t" in said] == layers
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_something_else_in_the_final_layers_place(
    captured: list[Captured], smollm2: Path, tmp_path: Path
) -> None:
    embeddings = load_embeddings(str(smollm2)).float().numpy().astype(np.float16)

    def found(name: str, final: Callable[[Captured], Any]) -> dict[str, Any]:
        wrong = [{**one, "states": {**one["states"], FINAL: final(one)}} for one in captured]
        url = str(write(tmp_path / name, smollm2, wrong))
        return require_aligned(gather(url, str(smollm2), config()))

    with pytest.raises(MisalignedError, match="layer 30 is not what leaves the last decoder layer"):
        found("embeddings", lambda one: embeddings[one["ids"]])
    low = found("low", lambda one: one["states"][2])
    assert low["verdict"] == "aligned"  # of what was found, no row is off
    assert "nothing proves that layer 30 is the final one" in low["notice"]


def test_it_is_trained_on_when_forced(
    captured: list[Captured], smollm2: Path, tmp_path: Path
) -> None:
    url = str(write(tmp_path / "set", smollm2, shifted(captured, 1, AUX)))
    records: list[dict[str, Any]] = []
    forced = config("data.allow_misaligned=true")
    train(url, str(smollm2), tmp_path / "run", forced, report=records.append)
    assert [record["kind"] for record in records] == ["alignment", "train"]
    assert records[0]["verdict"] == "misaligned"
    assert "as asked: at layer 2 row t holds the state of token t+1" in records[0]["notice"]
