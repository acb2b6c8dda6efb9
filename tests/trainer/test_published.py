"""Drafts published by others, in every layout and kind of file, are read as they were meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3data.schema.errors import InputError, LayerError
from eagle3data.schema.layers import Numbering
from eagle3data.schema.target import describe_target
from eagle3data.trainer.draft import Draft
from eagle3data.trainer.export import export_draft
from eagle3data.trainer.layouts import ExportFormat
from eagle3data.trainer.published import open_draft, read_published
from eagle3data.trainer.saved import SavedDraft
from eagle3data.trainer.ttt import Speed, find_pairs, unroll
from tests.trainer import small
from tests.trainer.test_export import EMBEDDINGS, saved

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return describe_target(str(small.target_folder(tmp_path_factory.mktemp("of") / "target")))[0]


def published(folder: Path, form: ExportFormat, draft: SavedDraft | None = None) -> Path:
    """An export without what only we write into one."""
    export_draft(draft or saved(), folder, form, embeddings=EMBEDDINGS)
    edit(folder, lambda config: config.pop("eagle3data"))
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / CONFIG).read_text())
    change(config)
    (folder / CONFIG).write_text(json.dumps(config))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def states(draft: SavedDraft) -> torch.Tensor:
    """What the draft computes of a pack, three steps deep."""
    model = Draft(draft.description.config, EMBEDDINGS)
    model.load_state_dict(draft.parameters)
    batch = small.pack([17, 9], budget=32)
    pairs = find_pairs(batch, 3, alignment="serving")  # type: ignore[arg-type]
    with torch.no_grad():
        normed = unroll(model, batch, pairs, Speed())
        return normed @ model.lm_head.weight.T


@pytest.mark.parametrize("form", ExportFormat)
def test_a_stranger_s_draft_is_read_as_it_was_meant(
    tmp_path: Path, target: Any, form: ExportFormat
) -> None:
    draft = saved()
    back = read_published(published(tmp_path / "out", form), target=target)
    assert back.draft.description.config == draft.description.config
    assert back.draft.description.aux_layers == small.AUX
    assert back.draft.vocabulary.d2t.tolist() == draft.vocabulary.d2t.tolist()
    rounded = {
        name: tensor.bfloat16().float() if tensor.is_floating_point() else tensor
        for name, tensor in draft.parameters.items()
    }
    same = SavedDraft(
        description=draft.description, parameters=rounded, vocabulary=draft.vocabulary
    )
    assert torch.equal(states(back.draft), states(same))
    assert (back.embeddings is not None) == (form is ExportFormat.SPECULATORS)


def test_through_every_layout_and_back_nothing_changes(tmp_path: Path, target: Any) -> None:
    forms = [*ExportFormat, ExportFormat.VLLM]
    draft = read_published(published(tmp_path / "0", ExportFormat.VLLM), target=target).draft
    before = states(draft)
    for number, form in enumerate(forms, start=1):
        draft = read_published(published(tmp_path / str(number), form, draft), target=target).draft
        assert torch.equal(states(draft), before)
    first, last = tmp_path / "0", tmp_path / str(len(forms))
    assert (first / WEIGHTS).read_bytes() == (last / WEIGHTS).read_bytes()


def test_what_a_missing_key_means_differs(tmp_path: Path, target: Any) -> None:
    for form, meant in ((ExportFormat.VLLM, False), (ExportFormat.SPECULATORS, True)):
        folder = published(tmp_path / form, form)
        edit(folder, lambda config: config.pop("norm_before_residual"))
        found = read_published(folder, target=target).draft.description.config
        assert found.norm_before_residual is meant


def test_what_the_library_of_speculators_saves(tmp_path: Path, target: Any) -> None:
    """Its save_pretrained (0.9.0) names its class, leaves nulls, and its buffers out."""
    folder = published(tmp_path / "out", ExportFormat.SPECULATORS)
    before = states(read_published(folder, target=target).draft)

    def saved_again(config: dict[str, Any]) -> None:
        config.update(architectures=["Eagle3DraftModel"], target_hidden_size=None)
        config["transformer_layer_config"].update(architectures=None, head_dim=8)

    edit(folder, saved_again)
    assert torch.equal(states(read_published(folder, target=target).draft), before)


def test_whose_the_layer_ids_are(tmp_path: Path, target: Any) -> None:
    folder = published(tmp_path / "out", ExportFormat.SGLANG)

    def layers(numbering: Numbering | None = None, of: Any = target) -> list[int]:
        found = read_published(folder, target=of, numbering=numbering)
        return found.draft.description.aux_layers

    assert layers() == [2, 3, 4]
    with pytest.raises(InputError, match="--model"):
        read_published(folder)
    assert layers(Numbering.VLLM) == [1, 2, 3]
    edit(folder, lambda config: config.pop("eagle_config"))
    # What every engine takes where no ids are given.
    assert layers(of=target.model_copy(update={"num_hidden_layers": 30})) == [2, 15, 27]
    with pytest.raises(InputError, match=r"\[2, 3, 3\].*3 different"):
        layers()
    edit(folder, lambda c: c.update(eagle_aux_hidden_state_layer_ids=[2, 4, 9]))
    with pytest.raises(LayerError, match="layer 9"):
        layers()


def as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def in_pieces(folder: Path, pattern: str, save: Callable[..., Any], index: str) -> None:
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    where = {name: pattern.format(1 + number % 2) for number, name in enumerate(names)}
    for file in set(where.values()):
        save({name: tensors[name] for name in names if where[name] == file}, folder / file)
    (folder / WEIGHTS).unlink()
    (folder / index).write_text(json.dumps({"weight_map": where}))


@pytest.mark.parametrize("kind", ["pickle", "shards", "pickled shards"])
def test_every_kind_of_file(tmp_path: Path, target: Any, kind: str) -> None:
    folder = published(tmp_path / "out", ExportFormat.SPECULATORS)
    before = read_published(folder, target=target).draft
    if kind == "pickle":
        as_pickle(folder)
    elif kind == "shards":
        pattern = "model-0000{}-of-00002.safetensors"
        in_pieces(folder, pattern, save_file, "model.safetensors.index.json")
    else:
        pattern = "pytorch_model-0000{}-of-00002.bin"
        in_pieces(folder, pattern, torch.save, "pytorch_model.bin.index.json")
    after = read_published(folder, target=target).draft
    assert torch.equal(states(after), states(before))


class Runs:
    """A pickle that would run something."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_runs_nothing(
    tmp_path: Path, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = published(tmp_path / "out", ExportFormat.VLLM)
    (folder / WEIGHTS).unlink()
    torch.save({"fc.weight": Runs()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin can't be read"):
        read_published(folder, target=target)
    assert not (tmp_path / "ran").exists()
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match="has no weights"):
        read_published(folder, target=target)
    index = {"weight_map": {"fc.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="outside its folder"):
        read_published(folder, target=target)


def test_a_vocabulary_that_may_be_left_out(tmp_path: Path, target: Any) -> None:
    folder = published(tmp_path / "half", ExportFormat.VLLM)
    rewrite(folder, lambda tensors: tensors.pop("t2d"))
    found = read_published(folder, target=target).draft.vocabulary
    assert np.flatnonzero(found.t2d).tolist() == found.draft_ids.tolist()
    rewrite(folder, lambda tensors: tensors.pop("d2t"))
    with pytest.raises(InputError, match="has no d2t"):
        read_published(folder, target=target)
    edit(folder, lambda config: config.update(draft_vocab_size=small.VOCAB))
    lm_head = torch.zeros(small.VOCAB, small.HIDDEN)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": lm_head}))
    found = read_published(folder, target=target).draft.vocabulary
    assert found.draft_ids.tolist() == list(range(small.VOCAB))


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors.pop(name)


def put(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("fc.weight"), r"lacks fc\.weight"),
        (put("midlayer.self_attn.q_norm.weight", torch.ones(8)), r"holds midlayer\.self_attn\.q_"),
        (put("fc.weight", torch.ones(32, 64)), r"fc\.weight is \[32, 64\], expected \[32, 96\]"),
        (put("norm.weight", torch.full((32,), torch.nan)), r"norm\.weight is not finite"),
        (put("d2t", torch.arange(40) + 10), "i \\+ d2t|expected 40 of 0 to 96"),
        (put("d2t", torch.zeros(39, dtype=torch.int64)), "d2t has 39 entries"),
        (put("t2d", torch.zeros(96, dtype=torch.bool)), "t2d has 96 entries"),
        (put("t2d", torch.zeros(97, dtype=torch.bool)), "contradicts itself"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, target: Any, change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    folder = published(tmp_path / "out", ExportFormat.VLLM)
    rewrite(folder, change)
    with pytest.raises(InputError, match=message):
        read_published(folder, target=target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64, "head_dim": 8}, "hidden_size is 64 there and 32 in target"),
        ({"vocab_size": 98}, "vocab_size is 98 there"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"norm_before_fc": True}, "norm_before_fc is True"),
        ({"norm_output": True}, "norm_output without fc_norm"),
        ({"model_type": "qwen3"}, "model_type is 'qwen3'"),
        ({"target_hidden_size": 64}, "target_hidden_size is 64"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "not of an EAGLE-3 draft"),
    ],
)
def test_what_can_t_be_loaded_says_why(
    tmp_path: Path, target: Any, changes: dict[str, Any], message: str
) -> None:
    folder = published(tmp_path / "out", ExportFormat.VLLM)
    edit(folder, lambda config: config.update(changes))
    with pytest.raises(InputError, match=message):
        open_draft(str(folder), target=target)


def test_nothing_there(tmp_path: Path, target: Any) -> None:
    with pytest.raises(InputError, match="does not exist"):
        open_draft(str(tmp_path / "none"), target=target)
    with pytest.raises(InputError, match="neither a run's folder"):
        open_draft(str(tmp_path), target=target)
