"""The unrolled draft against a naive loop that feeds its outputs back under a dense mask."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from eagle3data.readers.batch import Batch
from eagle3data.trainer.draft import Draft
from eagle3data.trainer.shift import MaskAlignment
from eagle3data.trainer.ttt import shifted_steps, unroll
from tests.trainer import small

STEPS = 4


def rms_norm(states: Any, weight: Any) -> Any:
    return states / (states.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rotated(heads: Any, positions: list[int]) -> Any:
    """One angle at a time, as a complex rotation of the pairs (i, i + D/2)."""
    size = heads.shape[-1]
    rows = []
    for row, position in zip(heads, positions, strict=True):
        angles = torch.tensor([position / 10_000 ** (2 * i / size) for i in range(size // 2)])
        turned = torch.complex(row[..., : size // 2], row[..., size // 2 :]) * torch.polar(
            torch.ones(size // 2), angles
        )
        rows.append(torch.cat([turned.real, turned.imag], -1))
    return torch.stack(rows)


def naive_logits(draft: Draft, batch: Batch) -> list[Any]:
    """Logits [T, Vd] of every step: all keys so far in one list, a dense mask over them."""
    weights = dict(draft.named_parameters())
    layer = "midlayer."
    total = len(batch.input_ids)
    documents, ids = batch.document_ids.tolist(), batch.input_ids.tolist()
    hidden = torch.cat(list(batch.hidden_states[:3].float()), -1) @ weights["fc.weight"].T
    keys: list[Any] = []
    values: list[Any] = []
    results = []
    for step in range(STEPS):
        tokens = [
            ids[t + 1 + step]
            if t + 1 + step < total and documents[t + 1 + step] == documents[t] >= 0
            else 0
            for t in range(total)
        ]
        positions = [position + step for position in batch.position_ids.tolist()]
        embedded = rms_norm(draft.embeddings[tokens], weights[f"{layer}input_layernorm.weight"])
        normed = rms_norm(hidden, weights[f"{layer}hidden_norm.weight"])
        both = torch.cat([embedded, normed], -1)
        project = {
            name: (both @ weights[f"{layer}self_attn.{name}_proj.weight"].T).view(total, -1, 8)
            for name in "qkv"
        }
        queries = rotated(project["q"], positions)
        keys.append(rotated(project["k"], positions).repeat_interleave(2, dim=1))
        values.append(project["v"].repeat_interleave(2, dim=1))
        mask = torch.zeros(total, (step + 1) * total, dtype=torch.bool)
        for t, j in itertools.product(range(total), range(total)):
            mask[t, j] = j <= t and documents[j] == documents[t]
        for later in range(1, step + 1):
            for t in range(total):
                mask[t, later * total + t] = True
        scores = torch.einsum("tad,jad->atj", queries, torch.cat(keys)) / 8**0.5
        chances = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        attended = torch.einsum("atj,jad->tad", chances, torch.cat(values)).flatten(1)
        residual = normed if draft.config.norm_before_residual else hidden
        hidden = residual + attended @ weights[f"{layer}self_attn.o_proj.weight"].T
        inner = rms_norm(hidden, weights[f"{layer}post_attention_layernorm.weight"])
        gate = inner @ weights[f"{layer}mlp.gate_proj.weight"].T
        up = inner @ weights[f"{layer}mlp.up_proj.weight"].T
        hidden = hidden + (gate * gate.sigmoid() * up) @ weights[f"{layer}mlp.down_proj.weight"].T
        results.append(rms_norm(hidden, weights["norm.weight"]) @ weights["lm_head.weight"].T)
    return results


def outputs(draft: Draft, batch: Batch) -> list[Any]:
    steps = shifted_steps(batch, STEPS, MaskAlignment.SERVING)
    return list(unroll(draft, batch, steps, torch.arange(len(batch.input_ids))))


def gradients(draft: Draft, logits: list[Any]) -> dict[str, Any]:
    draft.zero_grad()
    sum(step.sin().sum() for step in logits).backward()
    return {name: p.grad.clone() for name, p in draft.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_equals_the_naive_loop(norm_before_residual: bool) -> None:
    draft = small.draft(norm_before_residual=norm_before_residual)
    batch = small.pack([9, 1, 6], budget=19)
    mine = outputs(draft, batch)
    naive = naive_logits(draft, batch)
    assert sum(len(step.base) for step in mine) > 20
    for step in mine:
        torch.testing.assert_close(step.logits, naive[step.step][step.base], rtol=1e-4, atol=1e-4)
    expected = gradients(draft, [naive[step.step][step.base] for step in mine])
    found = gradients(draft, [step.logits for step in outputs(draft, batch)])
    assert expected.keys() == found.keys() == dict(draft.named_parameters()).keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4)


def test_packed_equals_unpacked() -> None:
    draft = small.draft()
    batch = small.pack([7, 12, 3], budget=30)
    packed = outputs(draft, batch)
    alone = [outputs(draft, document) for document in small.unpacked(batch)]
    for number, step in enumerate(packed):
        together = torch.cat([steps[number].logits for steps in alone])
        torch.testing.assert_close(step.logits, together, rtol=1e-5, atol=1e-5)
    found = gradients(draft, [step.logits for step in outputs(draft, batch)])
    separate = [s.logits for document in small.unpacked(batch) for s in outputs(draft, document)]
    for name, gradient in gradients(draft, separate).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_a_document_does_not_see_its_neighbours() -> None:
    draft = small.draft()
    batch = small.pack([7, 12, 3], budget=30)
    before = outputs(draft, batch)
    batch.hidden_states[:, 7:19] += 1
    batch.input_ids[7:19] = 5
    after = outputs(draft, batch)
    for old, new in zip(before, after, strict=True):
        outside = (old.base < 7) | (old.base >= 19)
        assert torch.equal(old.logits[outside], new.logits[outside])
        assert not torch.allclose(old.logits[~outside], new.logits[~outside])


def test_the_future_is_not_seen() -> None:
    draft = small.draft()
    batch = small.pack([16], budget=16)
    before = outputs(draft, batch)
    batch.hidden_states[:, 10:] += 1  # y and h from position 10 on; tokens stay
    after = outputs(draft, batch)
    for old, new in zip(before, after, strict=True):
        early = old.base < 10
        assert torch.equal(old.logits[early], new.logits[early])


def test_parameter_names_are_the_published_ones() -> None:
    state = small.draft().state_dict()
    attention = [f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"]
    mlp = [f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    norms = ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
    assert set(state) == {
        "fc.weight",
        "norm.weight",
        "lm_head.weight",
        *attention,
        *mlp,
        *(f"midlayer.{name}.weight" for name in norms),
    }
    assert state["fc.weight"].shape == (small.HIDDEN, 3 * small.HIDDEN)
    assert state["midlayer.self_attn.k_proj.weight"].shape == (16, 2 * small.HIDDEN)
    assert all(tensor.dtype == torch.float32 for tensor in state.values())


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 5e4,
            "factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ],
)
def test_scaled_rotary_is_transformers_own(parameters: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from eagle3data.trainer.draft import rotary_frequencies

    shape = small.config(rope_parameters=parameters, max_position_embeddings=2048)
    llama = LlamaConfig(
        hidden_size=small.HIDDEN,
        num_attention_heads=4,
        head_dim=8,
        max_position_embeddings=2048,
        rope_parameters=parameters,
    )
    reference = LlamaRotaryEmbedding(llama)
    frequencies, scale = rotary_frequencies(shape)
    torch.testing.assert_close(frequencies, reference.inv_freq)
    assert scale == pytest.approx(reference.attention_scaling)
