"""The same draft on the same pack: speculators' losses and gradients are ours."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3data.readers.batch import Batch
from eagle3data.storage.model_weights import load_embeddings, load_head
from eagle3data.trainer.config import load_config
from eagle3data.trainer.draft import Draft, DraftConfig
from eagle3data.trainer.layouts import own_name
from eagle3data.trainer.learner import Learner, Subject
from eagle3data.trainer.metrics import Metrics
from eagle3data.trainer.ttt import Speed
from tests.trainer import small

pytest.importorskip("speculators", reason="speculators is not installed (docs/speculators.md)")

STEPS, BUDGET, DRAFT_VOCAB = 3, 64, 40
NOT_TRAINED = ("embed_tokens", "verifier_", "d2t", "t2d")


def _pack() -> Batch:
    """Documents that begin with tokens without loss, as every chat template's do.

    speculators pairs a document's last positions with the next one's first tokens.
    """
    pack = small.pack([21, 13, 17], budget=BUDGET)
    for start in pack.cu_seqlens[:-1].tolist():
        pack.loss_mask[start : start + STEPS + 1] = 0
    return pack


def _theirs(target: Path, draft_ids: torch.Tensor, **shape: Any) -> Any:
    import speculators.models  # noqa: F401
    from speculators.model import SpeculatorModel
    from speculators.train.cli import create_transformer_layer_config

    layer = create_transformer_layer_config(str(target), 1, "llama", "silu", 2048, [])
    known = torch.zeros(small.VOCAB, dtype=torch.bool)
    known[draft_ids] = True
    registry: Any = SpeculatorModel.registry
    return registry["eagle3"].from_training_args(
        layer,
        t2d=known,
        d2t=draft_ids - torch.arange(len(draft_ids)),
        draft_vocab_size=len(draft_ids),
        target_layer_ids=small.AUX,
        verifier_name_or_path=str(target),
        ttt_steps=STEPS,
        draft_attn_impl="sdpa",
        **shape,
    )


def _their_losses(model: Any, pack: Batch) -> tuple[torch.Tensor, list[float]]:
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.data import CollateFn

    items = []
    for start, end in pairwise(pack.cu_seqlens.tolist()):
        states = pack.hidden_states[:, start:end].float()
        items.append(
            {
                "hidden_states": states[:-1].transpose(0, 1).flatten(1),
                "input_ids": pack.input_ids[start:end].long(),
                "verifier_last_hidden_states": states[-1],
                "loss_mask": pack.loss_mask[start:end].long(),
                "lengths": torch.tensor([end - start]),
                "position_ids": torch.arange(end - start),
            }
        )
    collate = CollateFn(BUDGET, small.HIDDEN, dtype=torch.float32, preprocess=shift_batch)
    batch = collate(items)
    batch.pop("error_records")
    kl = resolve_loss_config("kl_div", "eager")
    _, loss, metrics = model(**batch, ttt_steps=STEPS, loss_config=kl)
    return loss, [float(metrics[f"loss_{step}_sum"]) for step in range(STEPS)]


def _ours(target: Path, draft_ids: torch.Tensor, shape: DraftConfig, model: Any) -> Learner:
    draft = Draft(shape, load_embeddings(str(target), None))
    names = {own_name(name): tensor for name, tensor in model.state_dict().items()}
    kept = {name: tensor for name, tensor in names.items() if not name.startswith(NOT_TRAINED)}
    draft.load_state_dict(kept)
    subject = Subject(
        draft=draft,
        head=load_head(str(target), None),
        draft_ids=draft_ids,
        commonest_token=0,
        post_norm=False,
        device=torch.device("cpu"),
        speed=Speed(),
    )
    settings = [f"train.ttt_steps={STEPS}", "train.step_decay=1.0", "train.loss=kl"]
    return Learner(subject, load_config(None, settings))


@pytest.mark.parametrize("fc_norm", [False, True])
@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_losses_and_gradients(
    tmp_path: Path, norm_before_residual: bool, norm_output: bool, fc_norm: bool
) -> None:
    target = small.target_folder(tmp_path / "target")
    draft_ids = torch.arange(0, 2 * DRAFT_VOCAB, 2)
    variant = {
        "norm_before_residual": norm_before_residual,
        "norm_output": norm_output,
        "fc_norm": fc_norm,
    }
    torch.manual_seed(3)
    model = _theirs(target, draft_ids, **variant)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    shape = small.config(
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        **variant,
    )
    learner = _ours(target, draft_ids, shape, model)
    pack = _pack()
    theirs, by_step = _their_losses(model, pack)
    torch.autograd.backward(theirs)
    pairs = learner._pairs(pack)
    scales, _ = learner._scales([pack], [pairs])
    metrics = Metrics(learner.weights)
    ours = learner._lesson(pack, pairs, scales, metrics)
    torch.autograd.backward(ours)
    rates = metrics.rates()
    # They divide by the count and 1e-5.
    assert [step["loss"] for step in rates["steps"]] == pytest.approx(by_step, rel=1e-4)
    own = dict(learner.subject.draft.named_parameters())
    compared = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            wanted, found = parameter.grad, own[own_name(name)].grad
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5, msg=name)
            compared += 1
    assert compared == 12 + 3 * fc_norm  # the head is frozen
