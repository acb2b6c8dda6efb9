"""Which parameters each optimiser has, and that Muon's steps are of AdamW's size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle3data.schema.errors import InputError
from eagle3data.trainer.config import OptimizerSection
from eagle3data.trainer.optim import learning_rate, make_optimizers
from eagle3data.trainer.parallel import Parallel
from tests.trainer import small


def names_of(optimizer: torch.optim.Optimizer, draft: Any) -> set[str]:
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {name for name, p in draft.named_parameters() if id(p) in own}


def test_muon_has_the_hidden_matrices_and_adamw_the_rest() -> None:
    draft = small.draft()
    adamw, muon = make_optimizers(draft.named_parameters(), OptimizerSection(name="muon"))
    assert type(adamw) is torch.optim.AdamW
    assert type(muon) is torch.optim.Muon
    matrices = {name for name, p in draft.named_parameters() if p.dim() == 2}
    assert names_of(muon, draft) == matrices - {"lm_head.weight"}
    assert names_of(adamw, draft) | names_of(muon, draft) == dict(draft.named_parameters()).keys()


def test_muons_steps_are_as_large_as_adamws() -> None:
    moved = {}
    for name in ("adamw", "muon"):
        draft = small.draft()
        before = draft.midlayer.mlp.up_proj.weight.detach().clone()
        section = OptimizerSection(name=name, learning_rate=1e-2)
        torch.manual_seed(0)
        for parameter in draft.parameters():
            parameter.grad = torch.randn_like(parameter)
        for optimizer in make_optimizers(draft.named_parameters(), section):
            optimizer.step()
        moved[name] = (draft.midlayer.mlp.up_proj.weight.detach() - before).square().mean().sqrt()
    assert 0.1 < float(moved["muon"] / moved["adamw"]) < 1.0


def test_what_is_frozen_is_nobodys() -> None:
    draft = small.draft()
    draft.lm_head.weight.requires_grad_(False)
    (adamw,) = make_optimizers(draft.named_parameters(), OptimizerSection())
    assert "lm_head.weight" not in names_of(adamw, draft)


def test_what_is_left_open_depends_on_what_runs() -> None:
    section = OptimizerSection()
    on_a_gpu, elsewhere = section.chosen(muon_runs=True), section.chosen(muon_runs=False)
    assert (on_a_gpu.name, on_a_gpu.learning_rate) == ("muon", 1e-3)
    assert (elsewhere.name, elsewhere.learning_rate) == ("adamw", 1e-4)
    named = OptimizerSection(name="adamw", betas=(0.8, 0.9))
    assert named.chosen(muon_runs=True) == named.model_copy(update={"learning_rate": 1e-4})
    rated = OptimizerSection(learning_rate=5e-4)
    assert rated.chosen(muon_runs=True).learning_rate == 5e-4


def test_muon_over_shards_is_refused() -> None:
    draft = small.draft()
    with pytest.raises(InputError, match=r"muon.*slice.*ddp"):
        make_optimizers(draft.named_parameters(), OptimizerSection(name="muon"), Parallel.FSDP2)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_schedule_warms_up_and_falls_to_zero(schedule: Any) -> None:
    section = OptimizerSection(learning_rate=1.0, schedule=schedule, warmup_share=0.1)
    rates = [learning_rate(section, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.5)
    assert learning_rate(section, 100, 100) == pytest.approx(0.0, abs=1e-9)
