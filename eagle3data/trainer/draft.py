"""The EAGLE-3 draft: one Llama-style layer over the target's fused states and token embeddings.

Parameter names are the published ones (`fc`, `midlayer`, `norm`, `lm_head`), so that
`state_dict` is what an export holds. The embeddings are the target's, frozen and not part of
the state. Parameters stay float32; matrices are cast to the products' dtype once a pack. Held
in bfloat16 alone, norm weights never leave 1.0: the steps are smaller than their last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from eagle3data.schema.errors import InputError
from eagle3data.trainer.layer import DraftLayer, LayerSizes, LayerWeights, Norm, linear, rms_norm

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
    fc_norm: bool = Field(default=False, description="Each aux state is normed before `fc`.")
    norm_output: bool = Field(
        default=False, description="What is fed back has been through the final norm."
    )
    num_hidden_layers: int = Field(default=1, gt=0)

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
    """The draft's parameters and the target's embeddings; `ttt.unroll` computes with them."""

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
        self.sizes = LayerSizes(
            heads=config.num_attention_heads,
            key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
        )
        self.register_buffer("embeddings", embeddings, persistent=False)
        self.fc = linear(AUX_STATES * config.hidden_size, config.hidden_size)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(config.hidden_size) for _ in range(AUX_STATES))

        def layer(*, first: bool) -> DraftLayer:
            return DraftLayer(config.hidden_size, config.intermediate_size, self.sizes, first=first)

        self.midlayer = layer(first=True)
        if config.num_hidden_layers > 1:  # layers.1 on; engines know the first by either name
            numbers = range(1, config.num_hidden_layers)
            self.layers = nn.ModuleDict({str(number): layer(first=False) for number in numbers})
        self.norm = Norm(config.hidden_size)
        self.lm_head = linear(config.hidden_size, config.draft_vocab_size)
        inverse_frequencies, self.rotary_scale = rotary_frequencies(config)
        self.inverse_frequencies: Tensor
        self.register_buffer("inverse_frequencies", inverse_frequencies, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config.initializer_range)

    def fuse(self, aux_states: Tensor, dtype: torch.dtype) -> Tensor:
        """The hidden input of step 0: `[3, T, H]` aux states, lowest layer first, to `[T, H]`."""
        states = aux_states.to(dtype)
        if self.config.fc_norm:
            norms = [norm.get_parameter("weight") for norm in self.fc_norm]
            pairs = zip(states, norms, strict=True)
            states = torch.stack([rms_norm(*pair, self.sizes.eps) for pair in pairs])
        side_by_side = states.transpose(0, 1).flatten(1)  # [T, 3 H]
        return F.linear(side_by_side, self.fc.weight.to(dtype))

    @property
    def all_layers(self) -> list[DraftLayer]:
        """The first layer and those after it."""
        later = dict(self.layers.items()) if self.config.num_hidden_layers > 1 else {}
        return [self.midlayer, *(cast("DraftLayer", layer) for layer in later.values())]

    def normed(self, states: Tensor) -> Tensor:
        """The final norm of `[..., H]` states."""
        return rms_norm(states, self.norm.weight, self.sizes.eps)

    def embed(self, token_ids: Tensor, weights: LayerWeights) -> Tensor:
        """The embeddings' part of the first layer's queries, keys and values.

        Args:
            token_ids: `[T]` integers, unshifted.
            weights: the first layer's.

        Returns:
            `[T, (A + 2 KV) D]`, a row a token of the pack.
        """
        if weights.embedding_qkv is None:
            raise TypeError("only the first layer reads embeddings")
        embedded = F.embedding(token_ids, self.embeddings).to(weights.embedding_qkv.dtype)
        norm = self.midlayer.input_layernorm.weight
        return rms_norm(embedded, norm, self.sizes.eps) @ weights.embedding_qkv.T

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rotary positions `[T]`, `[T, D / 2]` float32 each."""
        angles = positions[:, None].float() * self.inverse_frequencies
        return angles.cos() * self.rotary_scale, angles.sin() * self.rotary_scale


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
