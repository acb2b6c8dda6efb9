"""Exports: what the engines read, in their own numbering, and back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagle3data.schema.errors import InputError, LayerError
from eagle3data.trainer.export import export_draft
from eagle3data.trainer.layouts import ExportFormat
from eagle3data.trainer.published import read_published
from eagle3data.trainer.saved import DraftDescription, SavedDraft
from eagle3data.trainer.vocab import VocabularyMap
from tests.trainer import small

EMBEDDINGS = torch.randn(small.VOCAB, small.HIDDEN)


def saved(aux_layers: list[int] | None = None, **changes: Any) -> SavedDraft:
    draft = small.draft(**changes)
    counts = np.zeros(small.VOCAB, dtype=np.int64)
    counts[10:80] = 1
    return SavedDraft(
        description=DraftDescription(
            config=draft.config,
            target="some/model",
            target_architecture="LlamaForCausalLM",
            target_layers=small.LAYERS,
            aux_layers=aux_layers or small.AUX,
            ttt_steps=3,
            data_set="sha256:0",
        ),
        parameters=dict(draft.state_dict()),
        vocabulary=VocabularyMap.most_frequent(counts, 40),
    )


@pytest.mark.parametrize("form", ExportFormat)
def test_round_trip(tmp_path: Path, form: ExportFormat) -> None:
    draft = saved()
    export_draft(draft, tmp_path / "out", form, embeddings=EMBEDDINGS)
    back = read_published(tmp_path / "out").draft
    assert back.description == draft.description
    assert back.vocabulary.d2t.tolist() == draft.vocabulary.d2t.tolist()
    assert back.vocabulary.t2d.tolist() == draft.vocabulary.t2d.tolist()
    assert back.parameters.keys() == draft.parameters.keys()
    for name, tensor in back.parameters.items():
        assert torch.equal(tensor, draft.parameters[name].bfloat16())


@pytest.mark.parametrize("form", [ExportFormat.VLLM, ExportFormat.SPECULATORS])
def test_variants_keep_the_names_that_vllm_reads(tmp_path: Path, form: ExportFormat) -> None:
    draft = saved(num_hidden_layers=2, fc_norm=True, norm_output=True)
    export_draft(draft, tmp_path / "out", form, embeddings=EMBEDDINGS)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["fc_norm"], config["norm_output"]) == (True, True)
    layer = config.get("transformer_layer_config", config)
    assert layer["num_hidden_layers"] == 2
    back = read_published(tmp_path / "out").draft
    assert back.description == draft.description
    assert {"layers.1.input_layernorm.weight", "fc_norm.2.weight"} <= back.parameters.keys()
    assert "layers.1.hidden_norm.weight" not in back.parameters
    assert back.parameters["layers.1.self_attn.q_proj.weight"].shape == (32, small.HIDDEN)


def test_an_export_of_an_import_is_the_same_bytes(tmp_path: Path) -> None:
    export_draft(saved(), tmp_path / "a", ExportFormat.VLLM)
    export_draft(read_published(tmp_path / "a").draft, tmp_path / "b", ExportFormat.VLLM)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_layer_ids_are_in_each_engines_numbering(tmp_path: Path) -> None:
    configs = {}
    for form in ExportFormat:
        export_draft(saved(), tmp_path / form, form, embeddings=EMBEDDINGS)
        configs[form] = json.loads((tmp_path / form / "config.json").read_text())
    key = "eagle_aux_hidden_state_layer_ids"
    assert configs[ExportFormat.VLLM]["eagle_config"][key] == [2, 3, 4]
    assert configs[ExportFormat.VLLM][key] == [2, 3, 4]
    assert configs[ExportFormat.SGLANG]["eagle_config"][key] == [1, 2, 3]
    assert key not in configs[ExportFormat.SGLANG]
    assert configs[ExportFormat.SPECULATORS][key] == [2, 3, 4]


def test_the_published_layout(tmp_path: Path) -> None:
    from safetensors import safe_open

    export_draft(saved(), tmp_path / "out", ExportFormat.SGLANG)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["model_type"] == "llama"
    assert (config["vocab_size"], config["draft_vocab_size"]) == (small.VOCAB, 40)
    assert config["tie_word_embeddings"] is False
    assert config["num_hidden_layers"] == 1
    assert (config["rope_theta"], config["rope_scaling"]) == (10_000.0, None)
    assert config["norm_before_residual"] is False
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        kinds = {name: file.get_slice(name).get_dtype() for name in shapes}
    h, a, k = small.HIDDEN, 32, 16
    assert shapes == {
        "fc.weight": (h, 3 * h),
        "midlayer.self_attn.q_proj.weight": (a, 2 * h),
        "midlayer.self_attn.k_proj.weight": (k, 2 * h),
        "midlayer.self_attn.v_proj.weight": (k, 2 * h),
        "midlayer.self_attn.o_proj.weight": (h, a),
        "midlayer.mlp.gate_proj.weight": (48, h),
        "midlayer.mlp.up_proj.weight": (48, h),
        "midlayer.mlp.down_proj.weight": (h, 48),
        "midlayer.input_layernorm.weight": (h,),
        "midlayer.hidden_norm.weight": (h,),
        "midlayer.post_attention_layernorm.weight": (h,),
        "norm.weight": (h,),
        "lm_head.weight": (40, h),
        "d2t": (40,),
        "t2d": (small.VOCAB,),
    }
    assert (kinds.pop("d2t"), kinds.pop("t2d")) == ("I64", "BOOL")
    assert set(kinds.values()) == {"BF16"}


def test_the_layout_of_speculators(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    with pytest.raises(InputError, match="--model"):
        export_draft(saved(), tmp_path / "out", ExportFormat.SPECULATORS)
    plain, out = tmp_path / "plain", tmp_path / "out"
    export_draft(saved(), plain, ExportFormat.VLLM)
    export_draft(saved(), out, ExportFormat.SPECULATORS, embeddings=EMBEDDINGS)
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["Eagle3Speculator"]
    assert config["speculators_model_type"] == "eagle3"
    # A reader takes true for granted where the key is missing.
    assert config["norm_before_residual"] is False
    assert config["speculators_config"] == {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "some/model", "architectures": ["LlamaForCausalLM"]},
    }
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["hidden_size"], layer["vocab_size"]) == ("llama", 32, 97)
    tensors = load_file(out / "model.safetensors")
    assert torch.equal(tensors.pop("embed_tokens.weight"), EMBEDDINGS.bfloat16())
    before = load_file(plain / "model.safetensors")
    assert set(tensors) == {name.replace("midlayer.", "layers.0.") for name in before}
    for name, tensor in before.items():
        assert torch.equal(tensors[name.replace("midlayer.", "layers.0.")], tensor)


def test_transformers_reads_the_config(tmp_path: Path) -> None:
    import transformers

    rope = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    export_draft(saved(rope_parameters=rope), tmp_path / "out", ExportFormat.VLLM)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config.hidden_size == small.HIDDEN
    assert config.draft_vocab_size == 40
    assert {**config.rope_parameters} == rope


def test_what_an_engine_has_no_word_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="norm_before_residual"):
        export_draft(saved(norm_before_residual=True), tmp_path / "out", ExportFormat.SGLANG)
    odd = saved(fc_norm=True, norm_output=True)
    with pytest.raises(InputError, match="fc_norm, norm_output"):
        export_draft(odd, tmp_path / "out", ExportFormat.SGLANG)
    with pytest.raises(InputError, match="several layers"):
        export_draft(saved(num_hidden_layers=2), tmp_path / "out", ExportFormat.SGLANG)
    with pytest.raises(LayerError, match="embeddings"):
        export_draft(saved(aux_layers=[0, 2, 3]), tmp_path / "out", ExportFormat.SGLANG)
    assert list(tmp_path.iterdir()) == []
    export_draft(saved(norm_before_residual=True), tmp_path / "out", ExportFormat.VLLM)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["norm_before_residual"] is True


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        export_draft(saved(), tmp_path / "out", ExportFormat.VLLM)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_something_else_is_no_export(tmp_path: Path) -> None:
    small.target_folder(tmp_path / "target")
    with pytest.raises(InputError, match="not of an EAGLE-3 draft"):
        read_published(tmp_path / "target")
