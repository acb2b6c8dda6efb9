"""Teacher, losses and metrics against dense computations over the whole vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eagle3data.storage.model_weights import TargetHead
from eagle3data.trainer import teacher as teacher_module
from eagle3data.trainer.loss import LOSSES, Loss, step_weights
from eagle3data.trainer.metrics import DEFINITIONS, Metrics
from eagle3data.trainer.shift import MaskAlignment
from eagle3data.trainer.teacher import teach
from eagle3data.trainer.ttt import (
    StepOutput,
    kept_counts,
    shifted_steps,
    teach_pack,
    unroll,
)
from tests.trainer import small

DRAFT_IDS = torch.tensor(sorted({*range(0, 78, 2), 1}))  # 40 of 97


def head(**changes: Any) -> TargetHead:
    torch.manual_seed(3)
    made = TargetHead(
        norm_weight=1 + 0.1 * torch.randn(small.HIDDEN),
        norm_eps=1e-5,
        norm_offset=0,
        lm_head=torch.randn(small.VOCAB, small.HIDDEN),
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    "changes", [{}, {"soft_cap": 5.0}, {"logit_scale": 0.25}, {"norm_offset": 1}]
)
@pytest.mark.parametrize("post_norm", [False, True])
def test_chunked_teacher_is_the_dense_one(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], post_norm: bool
) -> None:
    monkeypatch.setattr(teacher_module, "CHUNK_BYTES", 4 * small.VOCAB * 3)  # three rows a chunk
    target = head(**changes)
    states = torch.randn(10, small.HIDDEN).half()
    found = teach(target, states, DRAFT_IDS, post_norm=post_norm)
    dense = target.logits(states, post_norm=post_norm)
    torch.testing.assert_close(found.draft_logits, dense[:, DRAFT_IDS])
    torch.testing.assert_close(found.log_normaliser, dense.logsumexp(-1))
    assert torch.equal(found.argmax, dense.argmax(-1))
    full = dense.softmax(-1)
    torch.testing.assert_close(found.covered, full[:, DRAFT_IDS].sum(-1))
    torch.testing.assert_close(
        found.probabilities * found.covered[:, None], full[:, DRAFT_IDS], rtol=1e-4, atol=1e-6
    )


def test_only_positions_that_are_used_are_taught() -> None:
    batch = small.pack([9, 8], budget=20)
    batch.loss_mask[:] = 0
    batch.loss_mask[4] = 1  # as teacher position 4: base 3 at s=0, base 2 at s=1
    batch.loss_mask[9] = 1  # the second document's first token: nothing can draft after it
    steps = shifted_steps(batch, 2, MaskAlignment.SERVING)
    found, row_of = teach_pack(head(), batch, steps, DRAFT_IDS)
    assert len(found.argmax) == 1
    assert row_of.nonzero()[:, 0].tolist() != []
    assert (row_of >= 0).nonzero()[:, 0].tolist() == [4]
    assert kept_counts(steps).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("loss", Loss)
def test_losses_are_their_definitions(loss: Loss) -> None:
    torch.manual_seed(0)
    logits = torch.randn(12, 40, requires_grad=True)
    teacher = (3 * torch.randn(12, 40)).softmax(-1)
    teacher[0] = torch.eye(40)[3]  # a certain teacher: 0 log 0 is 0
    reference = torch.distributions.Categorical(probs=teacher)
    student = torch.distributions.Categorical(logits=logits)
    divergence = torch.distributions.kl_divergence(reference, student)
    expected = {
        Loss.KL: divergence,
        Loss.SOFT_CE: divergence + torch.special.entr(teacher).sum(-1),
    }[loss]
    found = LOSSES[loss](logits, teacher)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    torch.testing.assert_close(gradient, logits.softmax(-1) - teacher, rtol=1e-4, atol=1e-5)


def test_step_weights() -> None:
    assert step_weights(3, 0.8) == pytest.approx([1.0, 0.8, 0.64])
    assert step_weights(2, 1.0) == [1.0, 1.0]


def test_metrics_are_what_a_dense_count_over_positions_gives() -> None:
    target, draft = head(), small.draft()
    batch = small.pack([11, 14], budget=30)
    with torch.no_grad():  # a draft that is right now and then
        draft.lm_head.weight.copy_(target.lm_head[DRAFT_IDS])
        draft.fc.weight.copy_(torch.eye(small.HIDDEN).repeat(1, 3))
        batch.hidden_states[3] = batch.hidden_states[0] + batch.hidden_states[1]
        batch.hidden_states[3, 1:] = batch.hidden_states[3, :-1].clone()
    steps = shifted_steps(batch, 3, MaskAlignment.SERVING)
    teacher, row_of = teach_pack(target, batch, steps, DRAFT_IDS)
    metrics = Metrics(step_weights(3, 0.8))
    alive = torch.ones(30, dtype=torch.bool)
    outputs = list(unroll(draft, batch, steps, row_of))
    for output in outputs:
        losses = LOSSES[Loss.KL](output.logits, teacher.probabilities[output.teacher_rows])
        alive = metrics.add(
            output,
            losses,
            teacher,
            draft_ids=DRAFT_IDS,
            alive=alive,
            commonest_token=int(teacher.argmax.mode().values),
        )
    rates = metrics.rates()
    expected = dense_rates(target, batch, outputs)
    assert any(0 < step["accuracy"] < 1 for step in rates["steps"])
    for found, wanted in zip(rates["steps"], expected["steps"], strict=True):
        assert found == pytest.approx({**found, **wanted}, rel=1e-4)
    assert rates["simulated_acceptance_length"] == pytest.approx(expected["length"])
    assert rates["loss"] == pytest.approx(
        sum(0.8**s * step["loss"] for s, step in enumerate(rates["steps"]))
    )
    assert rates["commonest_token_accuracy"] > 0


def dense_rates(target: TargetHead, batch: Any, outputs: list[StepOutput]) -> dict[str, Any]:
    """Position by position, with the teacher's whole vocabulary at hand."""
    truth = target.logits(batch.hidden_states[3]).softmax(-1)  # [T, V]
    right_so_far = [True] * len(batch.input_ids)
    length, survival, steps = 1.0, 1.0, []
    for output in outputs:
        right, chained, accepted = [], [], []
        survivors = [False] * len(right_so_far)
        for base, logits in zip(output.base.tolist(), output.logits, strict=True):
            row = truth[base + 1 + output.step]
            draft = torch.zeros(small.VOCAB)
            draft[DRAFT_IDS] = logits.detach().softmax(-1)
            hit = int(draft.argmax()) == int(row.argmax())
            right.append(hit)
            accepted.append(float(torch.minimum(draft, row).sum()))
            if right_so_far[base]:
                chained.append(hit)
                survivors[base] = hit
        right_so_far = survivors
        given = sum(chained) / len(chained) if chained else 0.0
        survival *= given
        length += survival
        steps.append(
            {
                "kept": len(right),
                "accuracy": sum(right) / len(right),
                "accuracy_given_earlier": given,
                "acceptance": sum(accepted) / len(accepted),
            }
        )
    return {"steps": steps, "length": length}


def test_a_teacher_outside_the_draft_vocabulary_counts_as_wrong_and_uncovered() -> None:
    target = head()
    outside = 95
    assert outside not in DRAFT_IDS.tolist()
    states = 40 * target.lm_head[[outside]]  # lm_head(norm(state)) peaks at that token
    teacher = teach(target, states, DRAFT_IDS)
    assert teacher.argmax.tolist() == [outside]
    assert float(teacher.covered) < 0.05
    metrics = Metrics([1.0])
    metrics.add(
        StepOutput(
            step=0,
            base=torch.tensor([0]),
            logits=teacher.draft_logits,  # the best that the draft can say
            teacher_rows=torch.tensor([0]),
        ),
        torch.zeros(1),
        teacher,
        draft_ids=DRAFT_IDS,
        alive=torch.ones(1, dtype=torch.bool),
        commonest_token=outside,
    )
    rates = metrics.rates()
    assert rates["accuracy"] == 0.0
    assert rates["steps"][0]["acceptance"] == pytest.approx(float(teacher.covered), rel=1e-3)
    assert rates["commonest_token_accuracy"] == 1.0


def test_every_reported_rate_is_defined() -> None:
    rates = Metrics([1.0]).rates()
    assert set(rates) - {"steps"} | set(rates["steps"][0]) == set(DEFINITIONS)


def test_a_position_once_wrong_is_out_of_the_chain() -> None:
    """Base 0 is right at all three steps; base 1 is wrong, right, wrong."""
    wanted, other = 3, 4
    teacher = teach(head(), 40 * head().lm_head[[int(DRAFT_IDS[wanted])]], DRAFT_IDS)
    metrics = Metrics([1.0] * 3)
    alive = torch.ones(2, dtype=torch.bool)
    for step, guesses in enumerate([(wanted, other), (wanted, wanted), (wanted, other)]):
        output = StepOutput(
            step=step,
            base=torch.tensor([0, 1]),
            logits=torch.eye(len(DRAFT_IDS))[list(guesses)],
            teacher_rows=torch.tensor([0, 0]),
        )
        alive = metrics.add(
            output,
            torch.zeros(2),
            teacher,
            draft_ids=DRAFT_IDS,
            alive=alive,
            commonest_token=0,
        )
    rates = metrics.rates()
    assert [step["accuracy"] for step in rates["steps"]] == [0.5, 1.0, 0.5]
    assert [step["accuracy_given_earlier"] for step in rates["steps"]] == [0.5, 1.0, 1.0]
    assert rates["simulated_acceptance_length"] == 1 + 0.5 + 0.5 + 0.5
