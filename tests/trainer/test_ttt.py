"""The unrolled draft against a naive loop that feeds its outputs back under a dense mask."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention

from eagle3data.readers.batch import Batch
from eagle3data.trainer import ttt
from eagle3data.trainer.attention import document_mask
from eagle3data.trainer.draft import Draft
from eagle3data.trainer.shift import MaskAlignment
from eagle3data.trainer.ttt import Pairs, Speed, find_pairs, unroll
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
    layers = ["midlayer.", *(f"layers.{n}." for n in range(1, draft.config.num_hidden_layers))]
    total = len(batch.input_ids)
    documents, ids = batch.document_ids.tolist(), batch.input_ids.tolist()
    aux = list(batch.hidden_states[:3].float())
    if draft.config.fc_norm:
        aux = [rms_norm(state, weights[f"fc_norm.{n}.weight"]) for n, state in enumerate(aux)]
    hidden = torch.cat(aux, -1) @ weights["fc.weight"].T
    keys: list[list[Any]] = [[] for _ in layers]
    values: list[list[Any]] = [[] for _ in layers]
    results = []
    for step in range(STEPS):
        tokens = [
            ids[t + 1 + step]
            if t + 1 + step < total and documents[t + 1 + step] == documents[t] >= 0
            else 0
            for t in range(total)
        ]
        positions = [position + step for position in batch.position_ids.tolist()]
        mask = torch.zeros(total, (step + 1) * total, dtype=torch.bool)
        for t, j in itertools.product(range(total), range(total)):
            mask[t, j] = j <= t and documents[j] == documents[t]
        for later in range(1, step + 1):
            for t in range(total):
                mask[t, later * total + t] = True
        for number, layer in enumerate(layers):
            if number == 0:
                embedded = draft.embeddings[tokens]
                embedded = rms_norm(embedded, weights[f"{layer}input_layernorm.weight"])
                normed = rms_norm(hidden, weights[f"{layer}hidden_norm.weight"])
                read = torch.cat([embedded, normed], -1)
                residual = normed if draft.config.norm_before_residual else hidden
            else:
                read = rms_norm(hidden, weights[f"{layer}input_layernorm.weight"])
                residual = hidden
            project = {
                name: (read @ weights[f"{layer}self_attn.{name}_proj.weight"].T).view(total, -1, 8)
                for name in "qkv"
            }
            queries = rotated(project["q"], positions)
            keys[number].append(rotated(project["k"], positions).repeat_interleave(2, dim=1))
            values[number].append(project["v"].repeat_interleave(2, dim=1))
            scores = torch.einsum("tad,jad->atj", queries, torch.cat(keys[number])) / 8**0.5
            chances = scores.masked_fill(~mask, -torch.inf).softmax(-1)
            attended = torch.einsum("atj,jad->tad", chances, torch.cat(values[number])).flatten(1)
            hidden = residual + attended @ weights[f"{layer}self_attn.o_proj.weight"].T
            inner = rms_norm(hidden, weights[f"{layer}post_attention_layernorm.weight"])
            gate = inner @ weights[f"{layer}mlp.gate_proj.weight"].T
            up = inner @ weights[f"{layer}mlp.up_proj.weight"].T
            down = weights[f"{layer}mlp.down_proj.weight"]
            hidden = hidden + (gate * gate.sigmoid() * up) @ down.T
        normed_output = rms_norm(hidden, weights["norm.weight"])
        results.append(normed_output @ weights["lm_head.weight"].T)
        if draft.config.norm_output:
            hidden = normed_output
    return results


def pairs_of(batch: Batch) -> Pairs:
    return find_pairs(batch, STEPS, MaskAlignment.SERVING)


def logits(draft: Draft, batch: Batch, **speed: Any) -> list[Any]:
    """Of the kept pairs, step by step."""
    pairs = pairs_of(batch)
    states = unroll(draft, batch, pairs, Speed(**speed))
    normed = rms_norm(states, draft.norm.weight)
    return list((normed @ draft.lm_head.weight.T).split_with_sizes(pairs.counts))


def gradients(draft: Draft, logits: list[Any]) -> dict[str, Any]:
    draft.zero_grad()
    sum(step.sin().sum() for step in logits).backward()
    return {name: p.grad.clone() for name, p in draft.named_parameters() if p.grad is not None}


@pytest.fixture
def every_row_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No base position is unrolled that nothing is learned from."""
    monkeypatch.setattr(ttt, "ROWS_MULTIPLE", 1)


@pytest.fixture
def flex_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses flex attention's gradients on a CPU, though its dense stand-in has them."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)


@pytest.mark.usefixtures("flex_gradients", "every_row_counts")
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"norm_before_residual": True},
        {"fc_norm": True, "norm_output": True},
        {"num_hidden_layers": 3, "norm_before_residual": True},
    ],
    ids=lambda variant: "+".join(variant) or "eagle3",
)
@pytest.mark.parametrize(
    "speed",
    [{}, {"flex": True}, {"checkpoint": True}, {"flex": True, "checkpoint": True}],
    ids=lambda speed: "+".join(speed) or "plain",
)
def test_equals_the_naive_loop(variant: dict[str, Any], speed: dict[str, bool]) -> None:
    draft = small.draft(**variant)
    batch = small.pack([9, 1, 6], budget=19)
    bases = pairs_of(batch).base.split_with_sizes(pairs_of(batch).counts)
    naive = naive_logits(draft, batch)
    naive = [step[base] for step, base in zip(naive, bases, strict=True)]
    mine = logits(draft, batch, **speed)
    assert sum(map(len, mine)) > 20
    for found, expected in zip(mine, naive, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    wanted = gradients(draft, naive)
    found_gradients = gradients(draft, mine)
    assert wanted.keys() == found_gradients.keys() == dict(draft.named_parameters()).keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found_gradients[name], gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("flex_gradients", "every_row_counts")
@pytest.mark.parametrize("flex", [False, True])
def test_packed_equals_unpacked(flex: bool) -> None:
    draft = small.draft()
    batch = small.pack([7, 12, 3], budget=30)
    packed = logits(draft, batch, flex=flex)
    alone = [logits(draft, document) for document in small.unpacked(batch)]
    for number, step in enumerate(packed):
        together = torch.cat([steps[number] for steps in alone])
        torch.testing.assert_close(step, together, rtol=1e-5, atol=1e-5)
    found = gradients(draft, packed)
    separate = [step for steps in alone for step in steps]
    for name, gradient in gradients(draft, separate).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [([300], 300), ([128, 128, 44], 384), ([5, 400, 1, 1, 200], 640), ([10], 700)],
)
@pytest.mark.parametrize("skip", [0, 1])
def test_the_block_mask_is_torchs_own(lengths: list[int], rows: int, skip: int) -> None:
    documents = torch.full((rows,), -1, dtype=torch.int32)
    documents[: sum(lengths)] = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    chosen = torch.arange(rows)[:: 1 + skip]
    mine = document_mask(documents, chosen)
    own = flex_attention.create_block_mask(
        mine.mask_mod, None, None, len(chosen), rows, device="cpu"
    )
    assert torch.equal(mine.to_dense(), own.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mine, name), getattr(own, name)), name


@pytest.mark.parametrize("layers", [1, 2])
def test_prompts_are_not_unrolled(every_row_counts: None, layers: int) -> None:
    """Positions before the last prompt token feed no kept pair; the result is the same."""
    draft = small.draft(num_hidden_layers=layers)
    batch = small.pack([20, 14], budget=40)
    batch.loss_mask[:] = 0
    batch.loss_mask[15:20] = batch.loss_mask[30:33] = 1
    pairs = pairs_of(batch)
    assert pairs.rows.tolist() == [*range(11, 19), *range(26, 32)]
    assert pairs.rows[pairs.base_rows].tolist() == pairs.base.tolist()
    naive = naive_logits(draft, batch)
    bases = pairs.base.split_with_sizes(pairs.counts)
    for number, (found, base) in enumerate(zip(logits(draft, batch), bases, strict=True)):
        torch.testing.assert_close(found, naive[number][base], rtol=1e-4, atol=1e-4)


def test_rows_come_in_multiples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttt, "ROWS_MULTIPLE", 8)
    batch = small.pack([20, 14], budget=40)
    batch.loss_mask[:] = 0
    batch.loss_mask[30:33] = 1
    rows = pairs_of(batch).rows
    assert len(rows) == 8
    assert {*range(26, 32)} < set(rows.tolist())
    assert rows.diff().min() > 0
    batch.loss_mask[:] = 0
    assert len(pairs_of(batch).rows) == 8
    batch.loss_mask[:] = 1
    assert rows.diff().min() > 0
    assert len(pairs_of(batch).rows) == 32


def test_bfloat16_products_leave_float32_gradients() -> None:
    draft = small.draft()
    batch = small.pack([9, 1, 6], budget=19)
    exact = gradients(draft, logits(draft, batch))
    for name, gradient in gradients(draft, logits(draft, batch, dtype=torch.bfloat16)).items():
        assert gradient.dtype == torch.float32
        assert (gradient - exact[name]).norm() < 0.05 * exact[name].norm(), name


def test_a_document_does_not_see_its_neighbours() -> None:
    draft = small.draft()
    batch = small.pack([7, 12, 3], budget=30)
    bases = pairs_of(batch).base.split_with_sizes(pairs_of(batch).counts)
    before = logits(draft, batch)
    batch.hidden_states[:, 7:19] += 1
    batch.input_ids[7:19] = 5
    after = logits(draft, batch)
    for base, old, new in zip(bases, before, after, strict=True):
        outside = (base < 7) | (base >= 19)
        assert torch.equal(old[outside], new[outside])
        assert not torch.allclose(old[~outside], new[~outside])


def test_the_future_is_not_seen() -> None:
    draft = small.draft()
    batch = small.pack([16], budget=16)
    bases = pairs_of(batch).base.split_with_sizes(pairs_of(batch).counts)
    before = logits(draft, batch)
    batch.hidden_states[:, 10:] += 1  # y and h from position 10 on; tokens stay
    after = logits(draft, batch)
    for base, old, new in zip(bases, before, after, strict=True):
        assert torch.equal(old[base < 10], new[base < 10])


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
