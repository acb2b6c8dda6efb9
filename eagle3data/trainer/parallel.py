"""Several processes as one run: who they are, what they agree on, how the draft is spread.

torchrun starts the processes and ends them all when one dies. Every process reads its own
packs; gradients are summed, and a step's loss is divided by the kept positions of all of them,
so that the number of processes changes nothing but the size of a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from eagle3data.schema.errors import Eagle3DataError, InputError

Result = TypeVar("Result")


class Parallel(StrEnum):
    """How a draft is spread over processes."""

    NONE = "none"
    DDP = "ddp"
    FSDP2 = "fsdp2"


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a run, as one of them sees it.

    Attributes:
        device: where this process computes.
        rank: of this process.
        size: how many there are.
        parallel: how the draft is spread over them.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    parallel: Parallel = Parallel.NONE

    @property
    def is_first(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over processes, in place where there are several; equal to the bit on all."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether it holds on any process."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0)

    def gather(self, value: Result) -> list[Result]:
        """Every process's value, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, work: Callable[[], Result]) -> Result:
        """What `work` gives, done by the first process alone; what it raises, all raise."""
        if self.size == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = work()
            except Eagle3DataError as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, device=self.device)
        if outcome[1] is not None:
            raise outcome[1]
        result: Result = outcome[0]
        return result


@contextmanager
def processes(parallel: str, device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun started, or be the only one.

    Args:
        parallel: `train.parallel`; auto is ddp where there are several.
        device: a CUDA device becomes the one of `LOCAL_RANK`.

    Raises:
        InputError: a way to spread that doesn't fit how the process was started.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    launched = "RANK" in os.environ and "MASTER_ADDR" in os.environ
    if parallel == "auto":
        parallel = "ddp" if size > 1 else "none"
    chosen = Parallel(parallel)
    if chosen is Parallel.NONE:
        if size > 1:
            raise InputError(
                f"train.parallel is none, but torchrun started {size} processes: each would train "
                "a draft of its own into the same folder. Leave it at auto, or start one."
            )
        yield World(device=device)
        return
    if not launched:
        raise InputError(
            f"train.parallel is {chosen}, but this process was not started by torchrun. Start it "
            "with `torchrun --nproc-per-node N -m eagle3data.cli.main train ...`."
        )
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield World(rank=dist.get_rank(), size=size, parallel=chosen, device=device)
    finally:
        dist.destroy_process_group()


def spread(module: nn.Module, world: World) -> nn.Module:
    """The module as every process calls it; its parameters may become shards of themselves.

    Make the optimiser from the parameters as they are afterwards.
    """
    if world.parallel is Parallel.DDP:
        return nn.parallel.DistributedDataParallel(
            module, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    if world.parallel is Parallel.FSDP2:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # One group for all of it: each step of the unrolled draft uses every parameter.
        mesh = init_device_mesh(world.device.type, (world.size,))
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
    return module


def accumulating(module: nn.Module, world: World, *, last: bool) -> AbstractContextManager[Any]:
    """Round a backward pass: gradients meet other processes' in a step's last one only."""
    if world.parallel is Parallel.FSDP2:
        module.set_requires_gradient_sync(last)  # type: ignore[operator]
    if isinstance(module, nn.parallel.DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()
