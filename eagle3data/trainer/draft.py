"""The EAGLE-3 draft: one Llama-style layer over the target's fused states and token embeddings.

Parameter names are the published ones (`fc`, `midlayer`, `norm`, `lm_head`), so that
`state_dict` is what an export holds. The embeddings are the target's, frozen and not part of
the state. Parameters stay float32; speed comes from autocast round the forward pass. Held in
bfloat16 alone, norm weights never leave 1.0: the steps are smaller than their last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from eagle3data.schema.errors import InputError
from eagle3data.trainer.attention import StepKeys, ttt_attention

if TYPE_CHECKING:
    from torch import Tensor

AUX_STATES = 3
"""States of the target that `fc` fuses."""

_FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary types whose frequencies don't depend on the length at hand."""


class DraftConfig(BaseModel):
    """The draft's shape, in the words of a Llama config.

    Hidden size, vocabulary and rotary parameters are the target's; the rest defaults to it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0, description="The target's vocabulary.")
    draft_vocab_size: int = Field(gt=0)
    rms_norm_eps: float = 1e-6
    rope_parameters: dict[str, Any] = Field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10_000.0}
    )
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    norm_before_residual: bool = Field(
        default=False, description="The residual is taken after `hidden_norm`, not before it."
    )

    @classmethod
    def from_target(
        cls, config: dict[str, Any], *, draft_vocab_size: int, **chosen: Any
    ) -> DraftConfig:
        """Sizes for a draft of the target whose (text) config this is.

        Args:
            config: the target's config.json, its language model's part.
            draft_vocab_size: tokens that the draft can propose.
            chosen: fields that differ from the target's; None means the target's.

        Raises:
            InputError: the config lacks a size, or asks for rotary scaling that isn't known here.
        """
        heads = config.get("num_attention_heads")
        hidden = config.get("hidden_size")
        if not isinstance(heads, int) or not isinstance(hidden, int):
            raise InputError(
                "the target's config does not say num_attention_heads and hidden_size."
            )
        fields: dict[str, Any] = {
            "hidden_size": hidden,
            "intermediate_size": config.get("intermediate_size") or 4 * hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": config.get("num_key_value_heads") or heads,
            # MLA targets have no head_dim; their values' width plays its part.
            "head_dim": config.get("head_dim") or config.get("v_head_dim") or hidden // heads,
            "vocab_size": config["vocab_size"],
            "draft_vocab_size": draft_vocab_size,
            "rms_norm_eps": config.get("rms_norm_eps") or 1e-6,
            "rope_parameters": _rope_parameters(config),
            "max_position_embeddings": config.get("max_position_embeddings") or 2048,
            **{name: value for name, value in chosen.items() if value is not None},
        }
        shape = cls(**fields)
        if shape.num_attention_heads % shape.num_key_value_heads or shape.head_dim % 2:
            raise InputError(
                f"{shape.num_attention_heads} attention heads over {shape.num_key_value_heads} "
                f"key-value heads of {shape.head_dim}: the first must be a multiple of the second, "
                "and the last even. Set model.num_attention_heads, model.num_key_value_heads and "
                "model.head_dim."
            )
        return shape


class Draft(nn.Module):
    """The draft and the target's embeddings.

    `forward` is one training-time-test step; `trainer.ttt.unroll` calls it step by step.
    """

    embeddings: Tensor

    def __init__(self, config: DraftConfig, embeddings: Tensor) -> None:
        """Build a draft with fresh parameters, in float32.

        Args:
            config: its shape.
            embeddings: the target's, `[V, H]`, any float dtype; frozen.

        Raises:
            InputError: the embeddings are not of the config's shape.
        """
        super().__init__()
        if embeddings.shape != (config.vocab_size, config.hidden_size):
            raise InputError(
                f"the target's embeddings are {list(embeddings.shape)}, its config says "
                f"[{config.vocab_size}, {config.hidden_size}]."
            )
        self.config = config
        self.register_buffer("embeddings", embeddings, persistent=False)
        self.fc = _linear(AUX_STATES * config.hidden_size, config.hidden_size)
        self.midlayer = _DraftLayer(config)
        self.norm = _norm(config)
        self.lm_head = _linear(config.hidden_size, config.draft_vocab_size)
        inverse_frequencies, self.rotary_scale = rotary_frequencies(config)
        self.inverse_frequencies: Tensor
        self.register_buffer("inverse_frequencies", inverse_frequencies, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config.initializer_range)

    def fuse(self, aux_states: Tensor) -> Tensor:
        """The hidden input of step 0: `[3, T, H]` aux states, lowest layer first, to `[T, H]`."""
        fused: Tensor = self.fc(aux_states.transpose(0, 1).flatten(1).float())
        return fused

    def forward(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        rotary_positions: Tensor,
        cache: StepKeys,
        cu_seqlens: Sequence[int],
    ) -> Tensor:
        """One step: tokens and hidden inputs of every base position to the draft's states.

        Args:
            token_ids: `[T]` int64.
            hidden: `[T, H]`: `fuse`'s result at step 0, the step before's result later.
            rotary_positions: `[T]` int64.
            cache: keys and values of the earlier steps; this step's are added.
            cu_seqlens: document boundaries of the pack.

        Returns:
            `[T, H]`, before the final norm: what the next step takes as hidden input.
        """
        embedded = F.embedding(token_ids, self.embeddings).to(hidden.dtype)
        angles = rotary_positions[:, None].float() * self.inverse_frequencies  # [T, D/2]
        rotary = (angles.cos() * self.rotary_scale, angles.sin() * self.rotary_scale)
        states: Tensor = self.midlayer(embedded, hidden, rotary, cache, cu_seqlens)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Draft-vocabulary logits `[K, Vd]` of draft states `[K, H]`, the final norm applied."""
        logits: Tensor = self.lm_head(self.norm(states))
        return logits


class _DraftLayer(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = _norm(config)
        self.hidden_norm = _norm(config)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _norm(config)
        self.mlp = _Mlp(config)

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: StepKeys,
        cu_seqlens: Sequence[int],
    ) -> Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)  # [T, 2H]
        states: Tensor = residual + self.self_attn(both, rotary, cache, cu_seqlens)
        fed_back: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return fed_back


class _Attention(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width = 2 * config.hidden_size
        self.q_proj = _linear(width, config.num_attention_heads * config.head_dim)
        self.k_proj = _linear(width, config.num_key_value_heads * config.head_dim)
        self.v_proj = _linear(width, config.num_key_value_heads * config.head_dim)
        self.o_proj = _linear(config.num_attention_heads * config.head_dim, config.hidden_size)

    def forward(
        self,
        both: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: StepKeys,
        cu_seqlens: Sequence[int],
    ) -> Tensor:
        by_head = (len(both), -1, self.head_dim)
        query = _rotate(self.q_proj(both).view(by_head), rotary)  # [T, A, D]
        key = _rotate(self.k_proj(both).view(by_head), rotary)  # [T, KV, D]
        cache.append(key, self.v_proj(both).view(by_head))
        attended: Tensor = self.o_proj(ttt_attention(query, cache, cu_seqlens).flatten(1))
        return attended


class _Mlp(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))
        return out


class _RmsNorm(nn.Module):
    """RMSNorm computed in float32, whatever autocast does round it."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        return F.rms_norm(states.float(), self.weight.shape, self.weight, self.eps)


def _norm(config: DraftConfig) -> _RmsNorm:
    return _RmsNorm(config.hidden_size, config.rms_norm_eps)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding in Llama's layout: the first half of a head pairs with its second half."""
    cos, sin = (part[:, None] for part in rotary)  # [T, 1, D/2]
    first, second = heads.float().chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.to(heads.dtype)


def _rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters of a target's config, in the one form that newer configs use."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = dict(found.get("full_attention", found))
    older_name = found.pop("type", "default")
    found.setdefault("rope_type", older_name)
    found.setdefault("rope_theta", config.get("rope_theta") or 10_000.0)
    if found["rope_type"] not in _FIXED_ROPE:
        raise InputError(
            f"the target's rotary embedding is of type {found['rope_type']!r}; a draft can have "
            f"{', '.join(_FIXED_ROPE)}. Set model.rope_parameters to what the draft should use."
        )
    return found


def rotary_frequencies(config: DraftConfig) -> tuple[Tensor, float]:
    """Inverse frequencies `[head_dim / 2]` float32, and what cos and sin are multiplied by."""
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
        return 1.0 / config.rope_parameters["rope_theta"] ** exponents, 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    llama = LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=config.rope_parameters,
    )
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](llama, torch.device("cpu"))
    return frequencies, float(scale)
