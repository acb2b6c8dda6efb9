"""One step of the optimiser, from packs to new parameters; the loop around it is `trainer.loop`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from eagle3data.readers.batch import Batch
from eagle3data.schema.errors import Eagle3DataError
from eagle3data.storage.model_weights import TargetHead
from eagle3data.trainer.config import TrainConfig
from eagle3data.trainer.draft import AUX_STATES, Draft
from eagle3data.trainer.judging import Judged, judge
from eagle3data.trainer.layer import rms_norm
from eagle3data.trainer.loss import Loss, step_weights
from eagle3data.trainer.metrics import Metrics
from eagle3data.trainer.teacher import Teacher, teach
from eagle3data.trainer.ttt import Pairs, Speed, find_pairs, unroll


class NonFiniteError(Eagle3DataError):
    """A loss or gradient that is not a finite number; the optimiser was not stepped with it."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is learned and from whom.

    Attributes:
        draft: on `device`.
        head: the target's, on `device`, lm_head in the dtype that its product is done in.
        draft_ids: `[Vd]` int64 on `device`, the draft vocabulary as target ids.
        commonest_token: the target token that most often carries loss.
        post_norm: final states carry the final norm already.
        device: where it is computed.
        speed: how.
    """

    draft: Draft
    head: TargetHead
    draft_ids: torch.Tensor
    commonest_token: int
    post_norm: bool
    device: torch.device
    speed: Speed


class Lesson(nn.Module):
    """A pack from states to loss as one module call: what is wrapped for several processes."""

    def __init__(
        self, draft: Draft, loss: Loss, speed: Speed, mark: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wrap a draft; the parameters are its own."""
        super().__init__()
        self.draft, self.loss, self.speed, self.mark = draft, loss, speed, mark

    def forward(
        self, batch: Batch, pairs: Pairs, teacher: Teacher, scales: torch.Tensor
    ) -> tuple[torch.Tensor, Judged]:
        """The sum over kept pairs of scale times loss, and what was measured.

        Args:
            batch: on the draft's device.
            pairs: of the batch.
            teacher: of the batch.
            scales: `[steps]` float32, each step's weight in the loss.
        """
        draft, speed = self.draft, self.speed
        states = unroll(draft, batch, pairs, speed)
        self.mark("unrolled")
        normed = rms_norm(states, draft.norm.weight, draft.config.rms_norm_eps)
        return judge(
            normed,
            draft.lm_head.weight,
            teacher,
            pairs.teacher_rows,
            scales[pairs.step],
            self.loss,
            compile=speed.compile,
        )


class Learner:
    """A draft, its optimiser, and what a step does to them."""

    def __init__(
        self, subject: Subject, config: TrainConfig, mark: Callable[[str], None] = lambda _: None
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            subject: what is learned.
            config: how.
            mark: called with the name of each part of a step as its work has been handed out.
        """
        self.subject, self.config, self.mark = subject, config, mark
        self.weights = step_weights(config.train.ttt_steps, config.train.step_decay)
        self.lesson = Lesson(subject.draft, config.train.loss, subject.speed, mark)
        self.optimizer = torch.optim.AdamW(
            subject.draft.parameters(),
            lr=config.optimizer.learning_rate,
            betas=config.optimizer.betas,
            weight_decay=config.optimizer.weight_decay,
            fused=True,
        )

    def learn(self, packs: list[Batch], rate: float) -> dict[str, Any]:
        """One step of the optimiser over one or more packs.

        Args:
            packs: wherever the loader put them.
            rate: learning rate.

        Returns:
            `Metrics.rates` of the packs before the step, and `grad_norm`, before clipping.

        Raises:
            NonFiniteError: the loss or the gradient is not finite.
        """
        found = [self._pairs(pack) for pack in packs]
        kept = torch.tensor([pairs.counts for pairs in found], dtype=torch.float64).sum(0)
        # Each step's loss is its mean over the kept positions of ALL packs.
        scales = (torch.tensor(self.weights) / kept.clamp(min=1)).float().to(self.subject.device)
        metrics = Metrics(self.weights, self.subject.device)
        for pack, pairs in zip(packs, found, strict=True):
            loss = self._lesson(pack, pairs, scales, metrics)
            self.mark("head, loss")
            torch.autograd.backward(loss)
            self.mark("backward")
        norm = nn.utils.clip_grad_norm_(
            self.subject.draft.parameters(), self.config.optimizer.max_grad_norm
        )
        self.mark("clip")
        rates = metrics.rates()
        if not (math.isfinite(rates["loss"]) and bool(norm.isfinite())):
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFiniteError(
                f"the loss is {rates['loss']} and the gradient's norm {float(norm)}. The samples "
                f"of this step are {', '.join(name for p in packs for name in p.sample_ids)}"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.mark("optimizer")
        return {**rates, "grad_norm": float(norm)}

    @torch.no_grad()
    def measure(self, packs: Iterable[Batch]) -> dict[str, Any]:
        """`Metrics.rates` over packs that nothing is learned from."""
        metrics = Metrics(self.weights, self.subject.device)
        ones = torch.ones(len(self.weights), device=self.subject.device)
        for pack in packs:
            self._lesson(pack, self._pairs(pack), ones, metrics)
        return metrics.rates()

    def _pairs(self, pack: Batch) -> Pairs:
        settings = self.config.train
        return find_pairs(pack, settings.ttt_steps, settings.mask_alignment)

    def _lesson(
        self, pack: Batch, pairs: Pairs, scales: torch.Tensor, metrics: Metrics
    ) -> torch.Tensor:
        """The pack's loss, still to be differentiated; `metrics` takes what was measured."""
        subject = self.subject
        batch = pack.to(subject.device, non_blocking=True)
        pairs = pairs.to(subject.device)
        self.mark("copy")
        teacher = teach(
            subject.head,
            batch.hidden_states[AUX_STATES].index_select(0, pairs.positions),
            subject.draft_ids,
            post_norm=subject.post_norm,
            compile=subject.speed.compile,
        )
        self.mark("teacher")
        loss, judged = self.lesson(batch, pairs, teacher, scales)
        metrics.add(
            pairs,
            judged,
            teacher,
            draft_ids=subject.draft_ids,
            commonest_token=subject.commonest_token,
        )
        total: torch.Tensor = loss
        return total
