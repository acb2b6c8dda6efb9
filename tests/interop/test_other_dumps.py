"""Model-Optimizer's dumps and TorchSpec's evaluation caches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle3data.schema.layers import NormState
from tests.interop.layouts import (
    SLOTS,
    Wanted,
    modelopt_dump,
    samples,
    save,
    torchspec_batch,
    write_modelopt,
    write_torchspec,
)
from tests.interop.reading import check_equal, cut, opened, refusal_of, refusals

ALL = list(range(SLOTS))


def test_model_optimizer_equal_to_the_bit(tmp_path: Path) -> None:
    source = opened(write_modelopt(tmp_path, samples()))
    assert source.format == "model-optimizer"
    check_equal(source, samples(), ALL)
    entries = source.entries()
    assert [entry.place for entry in entries[9:]] == ["dp0/9.pt", "dp0/10.pt", "dp1/11.pt"]
    assert source.tokens(entries[10]).extra == {"conversation_id": "10"}
    facts = source.facts()
    assert (facts.slots, facts.norm_state, facts.layers) == (SLOTS, None, None)
    assert any("vLLM" in note for note in facts.notes)


@pytest.mark.parametrize(("marked", "norm"), [(True, NormState.PRE), (False, NormState.POST)])
def test_a_dump_that_marks_its_norm(tmp_path: Path, marked: bool, norm: NormState) -> None:
    write_modelopt(tmp_path, samples()[:2], hidden_states_prenorm=marked)
    assert opened(tmp_path).facts().norm_state is norm


def test_dumps_marked_both_ways_are_not_mixed(tmp_path: Path) -> None:
    write_modelopt(tmp_path, samples()[:3], hidden_states_prenorm=True)
    dump = modelopt_dump(Wanted(1), 1, hidden_states_prenorm=False)
    save(dump, tmp_path / "dp0" / "1.pt")
    assert refusals(opened(tmp_path)) == {"dp0/1.pt": "source_mixed"}


def test_no_mask_and_no_aux_states(tmp_path: Path) -> None:
    dump = modelopt_dump(Wanted(0), "abc", aux_hidden_states=torch.empty(0))
    del dump["loss_mask"]
    source = opened(save(dump, tmp_path / "abc.pt"))
    (entry,) = source.entries()
    assert source.tokens(entry).loss_mask is None
    assert len(source.states(entry)) == 1
    assert any("EAGLE-3" in note for note in source.facts().notes)


def test_broken_dumps(tmp_path: Path) -> None:
    write_modelopt(tmp_path, samples())
    folder = tmp_path / "dp0"
    cut(folder / "2.pt", 0.5)
    save([modelopt_dump(Wanted(3), 3)], folder / "3.pt")  # as TensorRT-LLM leaves it
    save(modelopt_dump(Wanted(4), 4, hidden_states=torch.zeros(2, 8)), folder / "4.pt")
    assert refusals(opened(tmp_path)) == {
        "dp0/2.pt": "source_damaged",
        "dp0/3.pt": "source_layout",
        "dp0/4.pt": "length_mismatch",
    }


def test_torchspec_equal_to_the_bit_without_filling(tmp_path: Path) -> None:
    source = opened(write_torchspec(tmp_path, samples()))
    assert source.format == "torchspec"
    check_equal(source, samples(), ALL)
    assert [entry.place for entry in source.entries()][5:7] == [
        "eval_rank_0.pt#2.1",
        "eval_rank_1.pt#0.0",
    ]
    facts = source.facts()
    assert (facts.slots, facts.norm_state, facts.layers) == (SLOTS, None, None)


def test_broken_caches(tmp_path: Path) -> None:
    write_torchspec(tmp_path, samples())
    cut(tmp_path / "eval_rank_1.pt", 0.5)
    torn = torchspec_batch([Wanted(0)])
    torn["attention_mask"][0, 1] = 0
    parts = {**torchspec_batch([Wanted(1)]), "position_ids": torch.zeros(1, 256)}
    logits = {**torchspec_batch([Wanted(2)]), "last_hidden_states": None}
    good = torchspec_batch([Wanted(3)])
    save([torn, parts, logits, 7, good], tmp_path / "eval_rank_0.pt")
    source = opened(tmp_path)
    assert refusals(source) == {
        "eval_rank_0.pt#0.0": "length_mismatch",
        "eval_rank_0.pt#1.0": "source_layout",
        "eval_rank_0.pt#2.0": "source_layout",
        "eval_rank_0.pt#3.0": "source_layout",
        "eval_rank_1.pt": "source_damaged",
    }
    assert "sequence-parallel" in refusal_of(source, "eval_rank_0.pt#1.0")
