"""Who shares an epoch: rank and world size, and what each rank gets, step by step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from eagle3data.readers.packing import PackPlan
from eagle3data.schema.errors import InputError


def find_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size as given, or `torch.distributed`'s, or 0 of 1.

    Raises:
        InputError: a rank that can't be, `torchrun` without a process group, or a worker process
            of a DataLoader.
    """
    if (rank is None) != (world_size is None):
        raise InputError("give both rank and world_size, or neither.")
    if rank is None or world_size is None:
        if is_distributed():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']} but torch.distributed is not set up, so "
                "every rank would read everything. Call init_process_group first, or give rank "
                "and world_size."
            )
        else:
            rank, world_size = 0, 1
    if not 0 <= rank < world_size:
        raise InputError(f"rank {rank} of world size {world_size} can't be.")
    refuse_workers()
    return rank, world_size


def is_distributed() -> bool:
    """Whether `torch.distributed` is set up."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def refuse_workers() -> None:
    """Refuse to be inside a worker process of a `DataLoader`.

    Raises:
        InputError: this is one.
    """
    if torch.utils.data.get_worker_info() is not None:
        raise InputError(
            "a StreamingLoader inside a DataLoader worker would deliver every batch once a "
            "worker; it reads ahead by itself, so iterate it directly, or with num_workers=0."
        )


def steps_of(
    packs: PackPlan,
    lengths: npt.NDArray[np.int32],
    *,
    rank: int,
    world_size: int,
    start: int,
    token_budget: int,
) -> Iterator[list[int]]:
    """One rank's documents, step by step from a pack on, as far as packs are known.

    In the last step of a plan that is closed fewer packs than ranks may be left; their documents
    are shared out. A rank that gets none has an empty list.

    Args:
        packs: of all ranks.
        lengths: tokens of every document, by its number.
        rank: whose documents.
        world_size: how many share the packs.
        start: the first step's first pack.
        token_budget: the most that a rank takes in a step.
    """
    while (last := packs.get(start + world_size - 1)) is not None:
        yield last if rank == world_size - 1 else packs.get(start + rank) or []
        start += world_size
    if packs.is_closed and start < len(packs):
        left = [packs.get(place) or [] for place in range(start, len(packs))]
        yield _shared_out(left, lengths, world_size, token_budget)[rank]


def _shared_out(
    packs: Sequence[Sequence[int]], lengths: npt.NDArray[np.int32], ranks: int, token_budget: int
) -> list[list[int]]:
    """The documents of fewer packs than ranks, over all ranks.

    The longest first, each to the rank that has the fewest tokens. Where that would overfill a
    rank, whose documents are too long to be shared out so, the packs stay as they are.
    """
    documents = [document for pack in packs for document in pack]
    tokens = [int(lengths[document]) for document in documents]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for at in sorted(range(len(documents)), key=lambda at: (-tokens[at], at)):
        rank = held.index(min(held))
        shares[rank].append(at)
        held[rank] += tokens[at]
    if max(held) > token_budget:
        return [*map(list, packs), *([] for _ in range(ranks - len(packs)))]
    return [[documents[at] for at in sorted(share)] for share in shares]
