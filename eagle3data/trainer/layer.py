"""A decoder layer of the draft: its parameters, and its arithmetic as functions of a pack's rows.

The modules only hold parameters, under their published names; the arithmetic takes
`LayerWeights`, cast to the dtype of the products once a pack and not once a step.

The first layer reads `concat[input_layernorm(embed), hidden_norm(hidden)]`, so its projections
have a half for each. The embeddings' half depends on the token alone: it is multiplied once a
pack, and every training-time-test step takes its own shift of the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class LayerWeights(NamedTuple):
    """What one layer computes with: matrices in the products' dtype, norms in float32.

    `qkv` is the half that reads hidden states, `embedding_qkv` the one that reads embeddings
    (None in later layers, which have no such half).
    """

    qkv: Tensor  # [(A + 2 KV) D, H]
    embedding_qkv: Tensor | None  # [(A + 2 KV) D, H]
    out: Tensor  # [H, A D]
    gate_up: Tensor  # [2 I, H]
    down: Tensor  # [H, I]
    input_norm: Tensor  # [H]
    post_norm: Tensor  # [H]


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """The sizes that the arithmetic can't read off the weights."""

    heads: int
    key_value_heads: int
    head_dim: int
    eps: float


class DraftLayer(nn.Module):
    """Parameters of a layer. `hidden_norm` belongs to the first layer alone."""

    def __init__(self, hidden: int, intermediate: int, sizes: LayerSizes, *, first: bool) -> None:
        """Make them, in float32.

        Args:
            hidden: H.
            intermediate: I.
            sizes: of its attention.
            first: it reads embeddings beside hidden states.
        """
        super().__init__()
        self.first = first
        self.input_layernorm = Norm(hidden)
        if first:
            self.hidden_norm = Norm(hidden)
        self.self_attn = _Attention((1 + first) * hidden, hidden, sizes)
        self.post_attention_layernorm = Norm(hidden)
        self.mlp = _Mlp(hidden, intermediate)

    def weights(self, dtype: torch.dtype) -> LayerWeights:
        """The parameters as a pack uses them; gradients flow back to them."""
        attention, mlp = self.self_attn, self.mlp
        qkv = torch.cat(
            [p.weight.to(dtype) for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        )
        embedding_qkv = None
        if self.first:
            embedding_qkv, qkv = qkv.chunk(2, dim=1)
        norm = self.hidden_norm if self.first else self.input_layernorm
        return LayerWeights(
            qkv=qkv,
            embedding_qkv=embedding_qkv,
            out=attention.o_proj.weight.to(dtype),
            gate_up=torch.cat([mlp.gate_proj.weight.to(dtype), mlp.up_proj.weight.to(dtype)]),
            down=mlp.down_proj.weight.to(dtype),
            input_norm=norm.weight,
            post_norm=self.post_attention_layernorm.weight,
        )


class _Attention(nn.Module):
    def __init__(self, inputs: int, hidden: int, sizes: LayerSizes) -> None:
        super().__init__()
        self.q_proj = linear(inputs, sizes.heads * sizes.head_dim)
        self.k_proj = linear(inputs, sizes.key_value_heads * sizes.head_dim)
        self.v_proj = linear(inputs, sizes.key_value_heads * sizes.head_dim)
        self.o_proj = linear(sizes.heads * sizes.head_dim, hidden)


class _Mlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden, intermediate)
        self.up_proj = linear(hidden, intermediate)
        self.down_proj = linear(intermediate, hidden)


class Norm(nn.Module):
    """The weight `[size]` of an RMSNorm."""

    def __init__(self, size: int) -> None:
        """Start from ones."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A matrix `[outputs, inputs]` without a bias."""
    return nn.Linear(inputs, outputs, bias=False)


def rms_norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of `[..., H]`, computed in float32, in the dtype that came in."""
    return F.rms_norm(states.float(), weight.shape, weight, eps).to(states.dtype)


def project(
    hidden: Tensor,
    added: Tensor | None,
    rotary: tuple[Tensor, Tensor],
    weights: LayerWeights,
    sizes: LayerSizes,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the hidden input to what attention reads.

    Args:
        hidden: `[T, H]`.
        added: `[T, (A + 2 KV) D]`, the embeddings' part of queries, keys and values.
        rotary: cosines and sines, `[T, D / 2]` each.
        weights: the layer's.
        sizes: the layer's.

    Returns:
        The normed input `[T, H]`, queries `[T, A, D]`, keys and values `[T, KV, D]`; queries
        and keys are rotated.
    """
    normed = rms_norm(hidden, weights.input_norm, sizes.eps)
    qkv = normed @ weights.qkv.T
    if added is not None:
        qkv = qkv + added
    by_head = qkv.view(len(qkv), -1, sizes.head_dim)  # [T, A + 2 KV, D]
    query, key, value = by_head.split_with_sizes(
        [sizes.heads, sizes.key_value_heads, sizes.key_value_heads], dim=1
    )
    return normed, _rotate(query, rotary), _rotate(key, rotary), value.contiguous()


def finish(residual: Tensor, attended: Tensor, weights: LayerWeights, sizes: LayerSizes) -> Tensor:
    """From attention's result `[T, A, D]` and the residual `[T, H]` to the layer's output."""
    states = residual + attended.flatten(1) @ weights.out.T
    inner = rms_norm(states, weights.post_norm, sizes.eps)
    gate, up = (inner @ weights.gate_up.T).chunk(2, dim=-1)  # [T, I] each
    return states + (F.silu(gate) * up) @ weights.down.T


def _rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding in Llama's layout: the first half of a head pairs with its second half."""
    cos, sin = (part[:, None] for part in rotary)  # [T, 1, D/2]
    first, second = heads.float().chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.to(heads.dtype)
