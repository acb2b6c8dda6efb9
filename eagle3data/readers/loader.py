"""`StreamingLoader`: a data set as packed batches for one rank, in an order that can be resumed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from eagle3data.readers.batch import Batch
from eagle3data.readers.dataset import Dataset
from eagle3data.readers.device_copies import CudaDevice, device_of
from eagle3data.readers.failures import Failures
from eagle3data.readers.feeding import (
    DEFAULT_PREFETCH_BYTES,
    FeedMetrics,
    batch_buffers,
    read_ahead,
)
from eagle3data.readers.filling import Reading, Verify
from eagle3data.readers.order import epoch_order
from eagle3data.readers.packing import PACKING_VERSION, PackPlan
from eagle3data.schema.digest import json_digest, sequence_digest
from eagle3data.schema.errors import InputError, MismatchError
from eagle3data.schema.target import target_differences

_STATE_VERSION = 1
Where = Callable[[pa.Table], npt.NDArray[np.bool_]]


class StreamingLoader:
    """Batches of one epoch for one rank; iterate once an epoch.

    The global list of packs is a pure function of the set's generation, the seed, the epoch,
    the selection and the token budget. At step `s`, rank `r` of `W` gets pack `s*W + r`, so
    every sample comes exactly once an epoch at any world size, and the position is one number
    that means the same on every rank and at every world size.

    Attributes:
        rank: of this process.
        world_size: ranks that share the epoch.
        layers: canonical ids of what is read.
        metrics: how well the latest iteration feeds (`FeedMetrics`).
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        token_budget: int,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        layers: Sequence[int] | None = None,
        split: str | None = None,
        where: Where | None = None,
        shuffle: bool = True,
        verify: Verify | bool = "bytes",
        target: str | None = None,
        revision: str | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        max_skipped: int | None = None,
        ledger: str | Path | None = None,
        threads: int | None = None,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        device: torch.device | str | None = None,
    ) -> None:
        """Select samples and plan the epoch; nothing heavy is read yet.

        Args:
            dataset: what `open_dataset` returned.
            token_budget: T, rows of a batch.
            seed: of the order.
            rank: of this process; `torch.distributed`'s by default, 0 of 1 without it.
            world_size: ranks that share the epoch; given together with `rank`.
            layers: canonical ids to read; all by default.
            split: only samples of this split.
            where: index table to a boolean per row, true for samples to keep.
            shuffle: false keeps the index's order (still packed).
            verify: how closely every sample is checked as it is read. `bytes` (or true): sizes,
                every chunk's checksum, and that token ids and mask are the index's. `states`: and
                that every layer's magnitudes are those that the index states, so that states
                written again since show even with checksums of their own. `none` (or false): only
                that ids and mask are the index's.
            target: folder or hub id of the model that is trained against: must be the one that
                the states were taken from, tokenizer included.
            revision: its hub revision.
            on_error: of a sample whose bytes are damaged: raise, or leave it out of its batch, log
                it and count it in `skipped`.
            max_skipped: so many may be left out; the next one raises.
            ledger: file to which a JSON line is appended for each of them.
            threads: that read; by default as many as the data set's.
            prefetch_bytes: memory for batches that are being filled or wait to be asked for; two
                batches at least. What a consumer holds comes on top.
            device: where batches are copied to while the one before is used: `cuda`, `cuda:N`. By
                default, and with `cpu`, they stay in the host's memory, by default page-locked
                where there is a GPU.

        Raises:
            InputError: nothing selected, a sample over the budget, or ranks that can't be.
            MismatchError: the set was made with another model than `target`.
        """
        self._dataset = dataset
        self._budget = token_budget
        self._seed = seed
        self._shuffle = shuffle
        if isinstance(verify, bool):
            verify = "bytes" if verify else "none"
        if verify not in get_args(Verify):
            raise InputError(
                f"verify is {verify!r}; expected one of {', '.join(get_args(Verify))}."
            )
        if target is not None:
            _require_target(dataset, target, revision)
        if on_error not in {"raise", "skip"}:
            raise InputError(f"on_error is {on_error!r}; expected 'raise' or 'skip'.")
        if prefetch_bytes < 0:
            raise InputError(f"prefetch_bytes is {prefetch_bytes}; expected a number of bytes.")
        self._failures = Failures(
            dataset, skip=on_error == "skip", limit=max_skipped, ledger=ledger
        )
        self._threads = dataset.threads if threads is None else threads
        if self._threads < 1:
            raise InputError(f"threads is {threads!r}; expected a whole number from 1.")
        self._prefetch_bytes = prefetch_bytes
        self.rank, self.world_size = _ranks(rank, world_size)
        self.layers = list(layers) if layers is not None else dataset.manifest.layers
        missing = sorted(set(self.layers) - set(dataset.manifest.layers))
        if missing:
            raise InputError(f"{dataset.url} has layers {dataset.manifest.layers}, not {missing}.")
        self._reading = Reading(
            dataset=dataset, layers=self.layers, token_budget=token_budget, verify=verify
        )
        self._device = device_of(device)
        on_gpu = None if self._device is None else self._device.type == "cuda"
        self._buffers = batch_buffers(self._reading, pin=on_gpu)
        self.metrics = FeedMetrics()
        self._selected = self._select(split, where)
        self._lengths = dataset.index["length"].to_numpy()
        self._epoch = 0
        self._consumed = 0
        self._iteration = 0
        self._plan()

    def _select(self, split: str | None, where: Where | None) -> npt.NDArray[np.int64]:
        index = self._dataset.index
        keep = np.ones(index.num_rows, dtype=bool)
        if split is not None:
            keep &= np.asarray([value == split for value in index["split"].to_pylist()])
        if where is not None:
            keep &= np.asarray(where(index), dtype=bool)
        selected = np.flatnonzero(keep)
        if not len(selected):
            splits = sorted({value or "(no split)" for value in index["split"].to_pylist()})
            raise InputError(
                f"no sample of {self._dataset.url} is selected (split={split!r}); it has "
                f"{index.num_rows} samples, of {', '.join(splits) or 'no split'}. Leave split out, "
                "or write samples with one."
            )
        return selected

    def _plan(self) -> None:
        count = len(self._selected)
        order = epoch_order(count, self._seed, self._epoch) if self._shuffle else np.arange(count)
        self._packs = PackPlan(self._selected[order], self._lengths, self._budget)

    def __len__(self) -> int:
        """Steps of the epoch, the same on every rank."""
        return math.ceil(len(self._packs) / self.world_size)

    @property
    def packs(self) -> list[list[int]]:
        """The epoch's batches of all ranks, as rows of the index."""
        return list(self._packs)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration runs or continues."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; a change starts it from its beginning."""
        if epoch != self._epoch:
            self._iteration += 1
            self._epoch = epoch
            self._consumed = 0
            self._plan()

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch; afterwards the loader stands at the next one's beginning.

        Raises:
            CorruptionError: of a damaged sample, as `on_error` and `max_skipped` say.
            InputError: the position was changed, or another iteration begun, since this one began.
        """
        self._iteration += 1
        mine = self._iteration
        self.metrics = FeedMetrics()
        batches = read_ahead(
            self._own_packs(self._consumed),
            self._reading,
            threads=self._threads,
            prefetch_bytes=self._prefetch_bytes,
            metrics=self.metrics,
            skip=self._failures.add,
            buffers=self._buffers,
            device=self._copies_to,
        )
        for batch in batches:
            if mine != self._iteration:
                raise InputError(
                    "the loader's position was changed, or another iteration of it begun, while "
                    "this one ran: iterate it once at a time, and start anew after a change."
                )
            self._consumed = self._end_of_step(self._consumed)
            yield batch
            del batch
        if mine == self._iteration:
            self.set_epoch(self._epoch + 1)

    @cached_property
    def _copies_to(self) -> CudaDevice | None:
        """One for all epochs: torch keeps device memory by the stream that took it."""
        if self._device is None or self._device.type != "cuda":
            return None
        return CudaDevice(self._device)

    def _own_packs(self, start: int) -> Iterator[list[int]]:
        """This rank's packs from a step on; none in the last step is an empty one."""
        packs = self._packs
        while packs.get(start) is not None:
            yield packs.get(start + self.rank) or []
            start += self.world_size

    def _end_of_step(self, start: int) -> int:
        """The pack after a step's last one: fewer than the ranks are left in the last step."""
        last = start + self.world_size
        return last if self._packs.get(last - 1) is not None else len(self._packs)

    @property
    def skipped(self) -> int:
        """Samples left out so far since their bytes are damaged (`on_error="skip"`)."""
        return self._failures.skipped

    @cached_property
    def _fingerprint(self) -> dict[str, str | int]:
        names = self._dataset.index["sample_id"].take(self._selected).to_pylist()
        return {
            "generation": self._dataset.generation,
            "seed": self._seed,
            "token_budget": self._budget,
            "shuffle": "global" if self._shuffle else "none",
            "selection": sequence_digest(map(str, names)),
            "packing_version": PACKING_VERSION,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: the same on every rank, and for any world size.

        Counts the packs that were handed out (the one just yielded included), never those
        that were only read ahead.
        """
        fingerprint = self._fingerprint
        return {
            "version": _STATE_VERSION,
            "epoch": self._epoch,
            "consumed": self._consumed,
            "fingerprint": fingerprint,
            "digest": json_digest(fingerprint),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` stood; the stream after it is the one that would have come.

        Raises:
            MismatchError: the state is of another data set generation, seed, budget,
                selection, shuffle or packing version; the message says which.
        """
        if state.get("version") != _STATE_VERSION:
            raise MismatchError(
                f"a loader state of version {state.get('version')}; expected {_STATE_VERSION}."
            )
        here, there = self._fingerprint, state["fingerprint"]
        differing = [
            f"{key} was {there.get(key)}, here it is {here[key]}"
            for key in here
            if here[key] != there.get(key)
        ]
        if differing:
            raise MismatchError(
                f"the loader's state belongs to another stream: {'; '.join(differing)}. Restore it "
                "with the same data set and settings, or start without it."
            )
        self._iteration += 1
        self._epoch = int(state["epoch"])
        self._plan()
        consumed = int(state["consumed"])
        if consumed < 0 or (consumed and self._packs.get(consumed - 1) is None):
            raise MismatchError(
                f"the loader's state counts {consumed} packs of {len(self._packs)}."
            )
        self._consumed = consumed


def _require_target(dataset: Dataset, target: str, revision: str | None) -> None:
    manifest = dataset.manifest
    differing = target_differences(manifest.target, manifest.tokenizer, target, revision)
    if differing:
        raise MismatchError(
            f"{dataset.url} holds states of {manifest.target.name}, and {target} is not that "
            f"model: {'; '.join(differing)}. Give the model that the states were taken from. If it "
            "is the same one in another form (quantized, say), leave `target` out; to train, set "
            "data.allow_other_target=true."
        )


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise InputError("give both rank and world_size, or neither.")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
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
    if torch.utils.data.get_worker_info() is not None:
        raise InputError(
            "a StreamingLoader inside a DataLoader worker would deliver every batch once a "
            "worker; it reads ahead by itself, so iterate it directly."
        )
    return rank, world_size
