"""The head read from a folder's safetensors gives the logits that transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from eagle3data.schema.errors import InputError
from eagle3data.storage.model_weights import (
    UnknownHeadError,
    load_embeddings,
    load_head,
)

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"tie_word_embeddings": False},
    "Qwen3ForCausalLM": {"tie_word_embeddings": True},
    "Gemma2ForCausalLM": {"final_logit_softcapping": 2.0},
    "GraniteForCausalLM": {"logits_scaling": 8.0},
    "CohereForCausalLM": {"logit_scale": 0.25},
}


def make_model(folder: Path, architecture: str, **settings: Any) -> Any:
    """Save a small random model whose norm weights are not all alike."""
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**{**SMALL, **CASES[architecture]})
    model = model_class(config).eval()
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + 0.1)
    model.save_pretrained(folder, **settings)
    return model


def final_states(model: Any, input_ids: Any) -> Any:
    """What enters the final norm, as a hook sees it."""
    seen: list[Any] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        logits = model(input_ids).logits[0]
    handle.remove()
    return seen[0][0], logits


@pytest.mark.parametrize("architecture", CASES)
def test_logits_equal_transformers(tmp_path: Path, architecture: str) -> None:
    model = make_model(tmp_path, architecture)
    states, expected = final_states(model, torch.arange(1, 40)[None])
    head = load_head(str(tmp_path))
    torch.testing.assert_close(head.logits(states), expected, rtol=1e-4, atol=1e-4)
    normed = head.normed(states)
    torch.testing.assert_close(head.logits(normed, post_norm=True), expected, rtol=1e-4, atol=1e-4)


def test_sharded_folder(tmp_path: Path) -> None:
    model = make_model(tmp_path, "LlamaForCausalLM", max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    head = load_head(str(tmp_path))
    torch.testing.assert_close(head.lm_head, model.lm_head.weight.detach())
    embeddings = load_embeddings(str(tmp_path))
    torch.testing.assert_close(embeddings, model.model.embed_tokens.weight.detach())
    assert not torch.equal(embeddings, head.lm_head)


def test_tied_head_is_the_embeddings(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3ForCausalLM")
    assert torch.equal(load_head(str(tmp_path)).lm_head, load_embeddings(str(tmp_path)))


def test_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3ForCausalLM")
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(UnknownHeadError, match="lm_head"):
        load_head(str(tmp_path))


def test_nested_text_config_and_prefix(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = make_model(tmp_path, "LlamaForCausalLM")
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    nested = {"model_type": "kimi_k25", "text_config": {**config, "model_type": "kimi_k2"}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    head = load_head(str(tmp_path))
    torch.testing.assert_close(head.lm_head, model.lm_head.weight.detach())


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "LlamaForCausalLM")
    edit_config(tmp_path, model_type="a_model_of_next_year")
    with pytest.raises(UnknownHeadError, match="a_model_of_next_year"):
        load_head(str(tmp_path))


def test_a_biased_head_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_model(tmp_path, "LlamaForCausalLM")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {**tensors, "lm_head.bias": torch.zeros(SMALL["vocab_size"])},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(UnknownHeadError, match=r"lm_head\.bias"):
        load_head(str(tmp_path))


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "LlamaForCausalLM")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors"):
        load_head(str(tmp_path))


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
