"""Teacher, losses and metrics against dense computations over the whole vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eagle3data.storage.model_weights import TargetHead
from eagle3data.trainer.judging import Judged, judge
from eagle3data.trainer.layer import rms_norm
from eagle3data.trainer.loss import LOSSES, Loss, Target, step_weights
from eagle3data.trainer.metrics import DEFINITIONS, Metrics, walk
from eagle3data.trainer.shift import MaskAlignment
from eagle3data.trainer.teacher import CHUNK_BYTES, Teacher, teach
from eagle3data.trainer.ttt import Pairs, Speed, find_pairs, unroll
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


def covered(teacher: Teacher) -> Any:
    return (teacher.draft_logits - teacher.log_normaliser[:, None]).exp().sum(-1)


@pytest.mark.parametrize(
    "changes", [{}, {"soft_cap": 5.0}, {"logit_scale": 0.25}, {"norm_offset": 1}]
)
@pytest.mark.parametrize("post_norm", [False, True])
def test_chunked_teacher_is_the_dense_one(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], post_norm: bool
) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * small.VOCAB * 3)  # three rows a chunk
    target = head(**changes)
    states = torch.randn(10, small.HIDDEN).half()
    found = teach(target, states, DRAFT_IDS, post_norm=post_norm)
    dense = target.logits(states, post_norm=post_norm)
    torch.testing.assert_close(found.draft_logits, dense[:, DRAFT_IDS])
    torch.testing.assert_close(found.log_normaliser, dense.logsumexp(-1))
    assert torch.equal(found.argmax, dense.argmax(-1))
    full = dense.softmax(-1)
    torch.testing.assert_close(covered(found), full[:, DRAFT_IDS].sum(-1))


def test_only_positions_that_are_used_are_taught() -> None:
    batch = small.pack([9, 8], budget=20)
    batch.loss_mask[:] = 0
    batch.loss_mask[4] = 1  # as teacher position 4: base 3 at s=0, base 2 at s=1
    batch.loss_mask[9] = 1  # the second document's first token: nothing can draft after it
    pairs = find_pairs(batch, 2, MaskAlignment.SERVING)
    assert pairs.positions.tolist() == [4]
    assert pairs.teacher_rows.tolist() == [0, 0]
    assert (pairs.base.tolist(), pairs.step.tolist(), pairs.counts) == ([3, 2], [0, 1], [1, 1])


@pytest.mark.parametrize("loss", Loss)
def test_losses_are_their_definitions(loss: Loss) -> None:
    torch.manual_seed(0)
    logits = torch.randn(12, 40, requires_grad=True)
    restricted = (3 * torch.randn(12, 40)).softmax(-1)
    restricted[0] = torch.eye(40)[3]  # a certain teacher: 0 log 0 is 0
    full = restricted * torch.rand(12, 1)
    reference = torch.distributions.Categorical(probs=restricted)
    divergence = torch.distributions.kl_divergence(
        reference, torch.distributions.Categorical(logits=logits)
    )
    overlap = torch.minimum(logits.softmax(-1), full).sum(-1)
    weight = torch.exp(-2.0 * overlap).detach()
    expected = {
        Loss.KL: divergence,
        Loss.SOFT_CE: divergence + torch.special.entr(restricted).sum(-1),
        Loss.LK_ALPHA: -overlap.log(),
        Loss.LK_LAMBDA: weight * divergence + (1 - weight) * (1 - overlap),
    }[loss]
    found = LOSSES[loss](logits, Target(restricted=restricted, full=full), 2.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)
    if loss in {Loss.KL, Loss.SOFT_CE}:
        torch.testing.assert_close(gradient, logits.softmax(-1) - restricted, rtol=1e-4, atol=1e-5)


def test_lk_losses_at_their_ends() -> None:
    """A perfect draft costs nothing; a certain teacher makes it cross entropy; eta 0 is KL."""
    logits = torch.randn(3, 5)
    perfect = Target(restricted=logits.softmax(-1), full=logits.softmax(-1))
    certain = torch.eye(5)[[1, 2, 3]]
    for loss in (Loss.LK_ALPHA, Loss.LK_LAMBDA):
        assert LOSSES[loss](logits, perfect, 3.0).abs().max() < 1e-5
    one = Target(restricted=certain, full=certain)
    torch.testing.assert_close(
        LOSSES[Loss.LK_ALPHA](logits, one, 3.0), LOSSES[Loss.SOFT_CE](logits, one, 3.0)
    )
    torch.testing.assert_close(
        LOSSES[Loss.LK_LAMBDA](logits, one, 0.0), LOSSES[Loss.KL](logits, one, 0.0)
    )
    apart = Target(restricted=certain, full=certain)
    far = torch.tensor([[0.0, -200.0, 0.0, 0.0, 0.0]], requires_grad=True)
    assert torch.isfinite(LOSSES[Loss.LK_ALPHA](far, apart, 3.0)).all()


def test_step_weights() -> None:
    assert step_weights(3, 0.8) == pytest.approx([1.0, 0.8, 0.64])
    assert step_weights(2, 1.0) == [1.0, 1.0]


def judged_by_hand(guesses: list[int], covered: Any) -> Judged:
    zeros = torch.zeros(len(guesses))
    return Judged(losses=zeros, guesses=torch.tensor(guesses), accepted=zeros, covered=covered)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("loss", Loss)
def test_judging_in_chunks_is_the_dense_loss(
    monkeypatch: pytest.MonkeyPatch, loss: Loss, frozen: bool
) -> None:
    """Value and gradients, with more pairs than a chunk holds and unequal scales."""
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * 40 * 5)  # five rows a chunk
    torch.manual_seed(1)
    states = torch.randn(13, small.HIDDEN, requires_grad=True)
    matrix = torch.randn(40, small.HIDDEN, requires_grad=not frozen)
    teacher = teach(head(), torch.randn(6, small.HIDDEN), DRAFT_IDS)
    rows = torch.randint(6, (13,))
    scales = torch.rand(13)
    total, judged = judge(states, matrix, teacher, rows, scales, loss)
    logits = states @ matrix.T
    chosen = teacher.draft_logits[rows]
    full = (chosen - teacher.log_normaliser[rows, None]).exp()
    losses = LOSSES[loss](logits, Target(restricted=chosen.softmax(-1), full=full), 3.0)
    dense = (losses * scales).sum()
    torch.testing.assert_close(total, dense)
    torch.testing.assert_close(judged.losses, losses.detach())
    assert torch.equal(judged.guesses, logits.argmax(-1))
    wanted = [states] if frozen else [states, matrix]
    found = torch.autograd.grad(3 * total, wanted)
    for mine, theirs in zip(found, torch.autograd.grad(3 * dense, wanted), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_no_pairs_give_no_loss() -> None:
    """A pack that nothing is kept of, as ranks get in an epoch's last step."""
    states = torch.empty(0, small.HIDDEN, requires_grad=True)
    matrix = torch.randn(40, small.HIDDEN, requires_grad=True)
    teacher = teach(head(), torch.empty(0, small.HIDDEN), DRAFT_IDS)
    nothing = torch.empty(0)
    total, judged = judge(states, matrix, teacher, nothing.long(), nothing, Loss.KL)
    assert total.item() == 0
    assert len(judged.losses) == 0
    assert float(torch.autograd.grad(total, matrix)[0].norm()) == 0


def test_metrics_are_what_a_dense_count_over_positions_gives() -> None:
    target, draft = head(), small.draft()
    batch = small.pack([11, 14], budget=30)
    with torch.no_grad():  # a draft that is right now and then
        draft.lm_head.weight.copy_(target.lm_head[DRAFT_IDS])
        draft.fc.weight.copy_(torch.eye(small.HIDDEN).repeat(1, 3))
        batch.hidden_states[3] = batch.hidden_states[0] + batch.hidden_states[1]
        batch.hidden_states[3, 1:] = batch.hidden_states[3, :-1].clone()
    pairs = find_pairs(batch, 3, MaskAlignment.SERVING)
    teacher = teach(target, batch.hidden_states[3][pairs.positions], DRAFT_IDS)
    states = rms_norm(unroll(draft, batch, pairs, Speed()), draft.norm.weight, 1e-6)
    _, judged = judge(
        states,
        draft.lm_head.weight,
        teacher,
        pairs.teacher_rows,
        torch.ones(len(states)),
        Loss.KL,
    )
    metrics = Metrics(step_weights(3, 0.8))
    commonest = int(teacher.argmax.mode().values)
    metrics.add(pairs, judged, teacher, draft_ids=DRAFT_IDS, commonest_token=commonest)
    rates = metrics.rates()
    expected = dense_rates(target, batch, pairs, states @ draft.lm_head.weight.T)
    assert any(0 < step["accuracy"] < 1 for step in rates["steps"])
    for found, wanted in zip(rates["steps"], expected["steps"], strict=True):
        assert found == pytest.approx({**found, **wanted}, rel=1e-4)
    assert rates["simulated_acceptance_length"] == pytest.approx(expected["length"])
    assert rates["loss"] == pytest.approx(
        sum(0.8**s * step["loss"] for s, step in enumerate(rates["steps"]))
    )
    assert rates["commonest_token_accuracy"] > 0


def dense_rates(target: TargetHead, batch: Any, pairs: Pairs, logits: Any) -> dict[str, Any]:
    """Position by position, with the teacher's whole vocabulary at hand."""
    truth = target.logits(batch.hidden_states[3]).softmax(-1)  # [T, V]
    right_so_far = [True] * len(batch.input_ids)
    length, survival, steps = 1.0, 1.0, []
    by_step = zip(
        pairs.base.split_with_sizes(pairs.counts),
        logits.split_with_sizes(pairs.counts),
        strict=True,
    )
    for number, (bases, rows) in enumerate(by_step):
        right, chained, accepted = [], [], []
        survivors = [False] * len(right_so_far)
        for base, own in zip(bases.tolist(), rows, strict=True):
            row = truth[base + 1 + number]
            draft = torch.zeros(small.VOCAB)
            draft[DRAFT_IDS] = own.detach().softmax(-1)
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
    teacher = teach(target, 40 * target.lm_head[[outside]], DRAFT_IDS)  # peaks at that token
    assert teacher.argmax.tolist() == [outside]
    assert float(covered(teacher)) < 0.05
    best = torch.linalg.lstsq(target.lm_head[DRAFT_IDS], teacher.draft_logits[0]).solution
    _, judged = judge(
        best[None],  # the best that the draft can say
        target.lm_head[DRAFT_IDS],
        teacher,
        torch.tensor([0]),
        torch.ones(1),
        Loss.KL,
    )
    metrics = Metrics([1.0])
    metrics.add(PAPER_PAIRS, judged, teacher, draft_ids=DRAFT_IDS, commonest_token=outside)
    rates = metrics.rates()
    assert rates["accuracy"] == 0.0
    assert rates["steps"][0]["acceptance"] == pytest.approx(float(covered(teacher)), rel=1e-2)
    assert rates["steps"][0]["coverage"] == pytest.approx(float(covered(teacher)), rel=1e-4)
    assert rates["commonest_token_accuracy"] == 1.0


PAPER_PAIRS = Pairs(
    base=torch.tensor([0]),
    step=torch.tensor([0]),
    counts=[1],
    positions=torch.tensor([1]),
    teacher_rows=torch.tensor([0]),
    rows=torch.arange(2),
    base_rows=torch.tensor([0]),
    length=2,
)


def test_every_reported_rate_is_defined() -> None:
    rates = Metrics([1.0], walking=True).rates()
    of_the_run = {"seconds", "waited"}
    assert set(rates) - {"steps"} | set(rates["steps"][0]) | of_the_run == set(DEFINITIONS)


def test_a_position_once_wrong_is_out_of_the_chain() -> None:
    """Base 0 is right at all three steps; base 1 is wrong, right, wrong."""
    wanted, other = 3, 4
    teacher = teach(head(), 40 * head().lm_head[[int(DRAFT_IDS[wanted])]], DRAFT_IDS)
    pairs = Pairs(
        base=torch.tensor([0, 1] * 3),
        step=torch.tensor([0, 0, 1, 1, 2, 2]),
        counts=[2, 2, 2],
        positions=torch.tensor([1]),
        teacher_rows=torch.zeros(6, dtype=torch.int64),
        rows=torch.arange(2),
        base_rows=torch.tensor([0, 1] * 3),
        length=2,
    )
    guesses = [wanted, other, wanted, wanted, wanted, other]
    metrics = Metrics([1.0] * 3)
    judged = judged_by_hand(guesses, torch.ones(6))
    metrics.add(pairs, judged, teacher, draft_ids=DRAFT_IDS, commonest_token=0)
    rates = metrics.rates()
    assert [step["accuracy"] for step in rates["steps"]] == [0.5, 1.0, 0.5]
    assert [step["accuracy_given_earlier"] for step in rates["steps"]] == [0.5, 1.0, 1.0]
    assert rates["simulated_acceptance_length"] == 1 + 0.5 + 0.5 + 0.5


def test_the_walk_is_a_greedy_server_s_over_each_answer() -> None:
    """Token by token over three answers, against the walk over kept pairs."""
    steps, length = 5, 400
    batch = small.pack([150, 250], budget=length)
    batch.loss_mask[:] = 0
    answers = ((40, 150), (160, 200), (230, 400))  # the second and third are one document's
    for first, last in answers:
        batch.loss_mask[first:last] = 1
    pairs = find_pairs(batch, steps, MaskAlignment.SERVING)
    hits = torch.rand(steps, length, generator=torch.Generator().manual_seed(0)) < 0.7
    right = hits.cummin(0).values[pairs.step, pairs.base]
    calls = kept = 0
    for first, last in answers:
        newest = first  # the target's own first token
        while newest < last:  # what follows the answer's last token is foretold, too
            run = 0
            while run < 3 and newest + run < last and hits[run, newest - 1]:
                run += 1
            calls, kept, newest = calls + 1, kept + run, newest + run + 1
    assert 1 < kept / calls < 2
    assert walk(pairs, right) == (calls, kept)
