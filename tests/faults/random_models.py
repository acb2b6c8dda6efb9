"""Small targets of random weights, of two architectures, with a real tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

FILES_OF_A_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def llama(folder: Path, tokenizer_of: Path) -> Any:
    """12 layers of Llama, saved to a folder; the model itself in float32."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=49_152,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return _saved(transformers.LlamaForCausalLM, config, folder, tokenizer_of)


def deepseek(folder: Path, tokenizer_of: Path) -> Any:
    """12 layers of DeepSeek-V3: latent attention, and experts from layer 1 on."""
    import transformers

    config = transformers.DeepseekV3Config(
        vocab_size=49_152,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        tie_word_embeddings=False,
    )
    return _saved(transformers.DeepseekV3ForCausalLM, config, folder, tokenizer_of)


def _saved(kind: Any, config: Any, folder: Path, tokenizer_of: Path) -> Any:
    import torch

    torch.manual_seed(0)
    model = kind(config).eval()
    model.save_pretrained(folder)
    for name in FILES_OF_A_TOKENIZER:
        if (tokenizer_of / name).exists():
            shutil.copy(tokenizer_of / name, folder / name)
    return model
