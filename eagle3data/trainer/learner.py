"""One step of the optimiser, from packs to new parameters; the loop around it is `trainer.loop`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from eagle3data.readers.batch import Batch
from eagle3data.schema.errors import Eagle3DataError
from eagle3data.storage.model_weights import TargetHead
from eagle3data.trainer.config import TrainConfig, TrainSection
from eagle3data.trainer.draft import AUX_STATES, Draft
from eagle3data.trainer.judging import Judged, judge
from eagle3data.trainer.loss import step_weights
from eagle3data.trainer.metrics import Metrics
from eagle3data.trainer.optim import make_optimizers
from eagle3data.trainer.parallel import World, accumulating, spread
from eagle3data.trainer.teacher import Teacher, teach
from eagle3data.trainer.ttt import Pairs, Speed, find_pairs, unroll

_DRAFT = "draft."
"""Before a parameter's name within `Lesson`."""


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
        self, draft: Draft, settings: TrainSection, speed: Speed, mark: Callable[[str], None]
    ) -> None:
        """Wrap a draft; the parameters are its own."""
        super().__init__()
        self.draft, self.settings, self.speed, self.mark = draft, settings, speed, mark

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
        return judge(
            draft.normed(states),
            draft.lm_head.weight,
            teacher,
            pairs.teacher_rows,
            scales[pairs.step],
            self.settings.loss,
            eta=self.settings.lk_eta,
            compile=speed.compile,
        )


class Learner:
    """A draft, its optimiser, and what a step does to them."""

    def __init__(
        self,
        subject: Subject,
        config: TrainConfig,
        *,
        world: World | None = None,
        mark: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            subject: what is learned.
            config: how.
            world: the processes that learn together; none for this one alone.
            mark: called with the name of each part of a step as its work has been handed out.
        """
        self.subject, self.config, self.mark = subject, config, mark
        self.world = world or World(device=subject.device)
        self.weights = step_weights(config.train.ttt_steps, config.train.step_decay)
        self.lesson = spread(Lesson(subject.draft, config.train, subject.speed, mark), self.world)
        self.optimizers = make_optimizers(
            subject.draft.named_parameters(), config.optimizer, self.world.parallel
        )

    def learn(self, packs: list[Batch], rate: float) -> dict[str, Any]:
        """One step of the optimiser over one or more packs of every process.

        Args:
            packs: this process's, wherever the loader put them; as many as the others have.
            rate: learning rate.

        Returns:
            `Metrics.rates` of all packs before the step, `grad_norm`, before clipping, and
            `tokens`, of all packs.

        Raises:
            NonFiniteError: the loss or the gradient is not finite.
        """
        found = [self._pairs(pack) for pack in packs]
        scales, tokens = self._scales(packs, found)
        metrics = Metrics(self.weights, self.subject.device)
        for number, (pack, pairs) in enumerate(zip(packs, found, strict=True), start=1):
            with accumulating(self.lesson, self.world, last=number == len(packs)):
                loss = self._lesson(pack, pairs, scales, metrics)
                self.mark("head, loss")
                torch.autograd.backward(loss)
            self.mark("backward")
        norm = self._clip()
        self.mark("clip")
        self.world.sum(metrics.sums)
        rates = metrics.rates()
        if not (math.isfinite(rates["loss"]) and math.isfinite(norm)):
            self._forget_gradients()
            names = self.world.gather([name for pack in packs for name in pack.sample_ids])
            raise NonFiniteError(
                f"the loss is {rates['loss']} and the gradient's norm {norm}. The samples of this "
                f"step are {', '.join(name for own in names for name in own)}"
            )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self._forget_gradients()
        self.mark("optimizer")
        return {**rates, "grad_norm": norm, "tokens": tokens}

    def _scales(self, packs: list[Batch], found: list[Pairs]) -> tuple[torch.Tensor, int]:
        """Each step's weight in a process's loss, `[steps]` float32; all packs' tokens.

        A step's loss is its mean over the kept positions of ALL packs of ALL processes. DDP and
        FSDP2 take the mean of the processes' gradients where the sum is due, hence the size.
        """
        counts = torch.tensor([pairs.counts for pairs in found], dtype=torch.float64).sum(0)
        tokens = torch.tensor([sum(pack.tokens for pack in packs)], dtype=torch.float64)
        totals = self.world.sum(torch.cat([counts, tokens]).to(self.subject.device))
        weights = torch.tensor(self.weights, dtype=torch.float64, device=totals.device)
        scales = self.world.size * weights / totals[:-1].clamp(min=1)
        return scales.float(), int(totals[-1])

    def _clip(self) -> float:
        """Clip the gradients of all parameters together; their norm before it."""
        norm = nn.utils.clip_grad_norm_(
            self.subject.draft.parameters(), self.config.optimizer.max_grad_norm
        )
        if isinstance(norm, DTensor):  # the shards' norms are still to be joined
            norm = norm.full_tensor()
        return float(norm)

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def measure(self, packs: Iterable[Batch]) -> dict[str, Any]:
        """`Metrics.rates` over all processes' packs; nothing is learned from them."""
        metrics = Metrics(self.weights, self.subject.device, walking=True)
        ones = torch.ones(len(self.weights), device=self.subject.device)
        for pack in packs:
            self._lesson(pack, self._pairs(pack), ones, metrics)
        for sums in (metrics.sums, metrics.walked):
            self.world.sum(sums)
        return metrics.rates()

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Parameters and optimiser state by parameter name, whole and in host memory.

        Every process must call it; the first one gets them, the others nothing. The same for
        any number of processes and any way to spread the draft.
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        parameters: dict[str, Any] = get_model_state_dict(self.lesson, options=options)
        own = {name.removeprefix(_DRAFT): tensor for name, tensor in parameters.items()}
        return own, get_optimizer_state_dict(self.lesson, self.optimizers, options=options)

    def load(self, parameters: dict[str, torch.Tensor], optimizer: dict[str, Any]) -> None:
        """Take up what `state` gave; every process must call it, only the first one's counts."""
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=self.world.size > 1)
        named: dict[str, Any] = {_DRAFT + name: tensor for name, tensor in parameters.items()}
        set_model_state_dict(self.lesson, named, options=options)
        set_optimizer_state_dict(self.lesson, self.optimizers, optimizer, options=options)

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
