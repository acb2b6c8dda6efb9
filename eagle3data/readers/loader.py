"""`StreamingLoader`: data sets as packed batches for one rank, in an order that can be resumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch.utils.data import IterableDataset

from eagle3data.readers.batch import Batch
from eagle3data.readers.dataset import Dataset
from eagle3data.readers.device_copies import CudaDevice, device_of
from eagle3data.readers.documents import Documents, OverBudget, require_alike
from eagle3data.readers.epochs import Epochs
from eagle3data.readers.failures import Failures
from eagle3data.readers.feeding import (
    DEFAULT_PREFETCH_BYTES,
    FeedMetrics,
    batch_buffers,
    read_ahead,
)
from eagle3data.readers.growing import GrowingSet
from eagle3data.readers.growing_epochs import GrowingEpochs
from eagle3data.readers.mixing import require_weights
from eagle3data.readers.order import Shuffle, shuffle_named
from eagle3data.readers.packing import PACKING_VERSION
from eagle3data.readers.ranks import find_ranks, refuse_workers, steps_of
from eagle3data.readers.reading import Reading, Verify
from eagle3data.readers.selection import Selection, Where
from eagle3data.readers.stream_state import (
    Fingerprint,
    require_same_stream,
    rows_digest,
    written_state,
)
from eagle3data.schema.digest import json_digest
from eagle3data.schema.errors import InputError, MismatchError
from eagle3data.schema.target import target_differences


class StreamingLoader(IterableDataset[Batch]):
    """Batches of one epoch for one rank; iterate once an epoch.

    The global list of packs is a pure function of the sets' generations, the seed, the epoch,
    the selection, the weights and the token budget. At step `s`, rank `r` of `W` gets pack
    `s*W + r`, so every sample comes exactly once an epoch at any world size (or as often as
    weights say), and the position is one number that means the same on every rank and at every
    world size.

    Attributes:
        rank: of this process.
        world_size: ranks that share the epoch.
        layers: canonical ids of what is read.
        documents: what packs are made of: samples, or pieces of those over the budget.
        metrics: how well the latest iteration feeds (`FeedMetrics`).
    """

    def __init__(
        self,
        dataset: Dataset | Sequence[Dataset],
        *,
        token_budget: int,
        seed: int = 0,
        weights: Sequence[float] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        layers: Sequence[int] | None = None,
        split: str | None = None,
        min_length: int | None = None,
        where: Where | None = None,
        over_budget: OverBudget = "refuse",
        shuffle: Shuffle | bool = "global",
        follow: bool = False,
        follow_timeout: float = 1800.0,
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
            dataset: what `open_dataset` returned, or several that are mixed.
            token_budget: T, rows of a batch.
            seed: of the order.
            weights: one a data set: the share of an epoch's tokens that comes from each, on
                average over epochs. Without them each selected sample of each set comes once.
            rank: of this process; `torch.distributed`'s by default, 0 of 1 without it.
            world_size: ranks that share the epoch; given together with `rank`.
            layers: canonical ids to read; all by default.
            split: only samples of this split.
            min_length: only samples of so many tokens or more.
            where: index table to a boolean per row, true for samples to keep.
            over_budget: of samples with more tokens than the budget: `refuse` them, or `split`
                them into documents of at most the budget.
            shuffle: `global` (or true) permutes samples; `shard` permutes shards, and samples
                among 16 shards at a time; `none` (or false) keeps the index's order (still packed).
            follow: the set is still being extracted: epoch 0 goes on with what is committed
                meanwhile, and ends when all is there.
            follow_timeout: seconds without a new shard after which `StalledError` is raised.
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
            InputError: nothing selected, a sample over the budget, sets that can't be mixed, or
                ranks that can't be.
            MismatchError: a set was made with another model than `target`.
        """
        sets = [dataset] if isinstance(dataset, Dataset) else list(dataset)
        if not sets:
            raise InputError("no data set was given.")
        self.layers = list(layers) if layers is not None else sets[0].manifest.layers
        require_alike(sets, self.layers)
        if target is not None:
            for one in sets:
                _require_target(one, target, revision)
        self._weights = None if weights is None else require_weights(weights, len(sets))
        self._seed, self._budget = seed, token_budget
        self._over_budget, self._shuffle = over_budget, shuffle_named(shuffle)
        self._selection = Selection(split=split, min_length=min_length, where=where)
        self.rank, self.world_size = find_ranks(rank, world_size)
        self.documents = Documents(sets[0].manifest, token_budget, over_budget)
        self._epochs = self._epochs_of(sets, follow_timeout if follow else None)
        if on_error not in {"raise", "skip"}:
            raise InputError(f"on_error is {on_error!r}; expected 'raise' or 'skip'.")
        if prefetch_bytes < 0:
            raise InputError(f"prefetch_bytes is {prefetch_bytes}; expected a number of bytes.")
        self._failures = Failures(
            self.documents, skip=on_error == "skip", limit=max_skipped, ledger=ledger
        )
        self._threads = max(one.threads for one in sets) if threads is None else threads
        if self._threads < 1:
            raise InputError(f"threads is {threads!r}; expected a whole number from 1.")
        self._prefetch_bytes = prefetch_bytes
        self._reading = Reading(
            documents=self.documents,
            layers=self.layers,
            token_budget=token_budget,
            verify=_verify_named(verify),
        )
        for cache in (one.cache for one in sets):
            if cache is not None:
                cache.serve(self.layers)
        self._device = device_of(device)
        on_gpu = None if self._device is None else self._device.type == "cuda"
        self._buffers = batch_buffers(self._reading, pin=on_gpu)
        self.metrics = FeedMetrics()
        self._consumed = 0
        self._iteration = 0
        self._begin_epoch(0)

    def _epochs_of(self, sets: Sequence[Dataset], follow_timeout: float | None) -> Epochs:
        """What plans the epochs; a timeout is of a set that is followed."""
        weights, selection = self._weights, self._selection
        if follow_timeout is None:
            numbers = [self.documents.add(one, selection.rows_or_refuse(one)) for one in sets]
            generation = " ".join(one.generation for one in sets)
            selected = rows_digest(self.documents.selections())
        else:
            if len(sets) > 1 or weights is not None:
                raise InputError("follow=True is for one data set; mix it in when it is finished.")
            if sets[0].cache is not None:
                raise InputError(
                    "follow=True reads past a cache, whose choice of samples is of a finished set; "
                    "open the data set without one."
                )
            generation = f"of growing {sets[0].manifest.identity}"
            selected = f"split {selection.split}, min_length {selection.min_length}"
        self._fingerprint: Fingerprint = {
            "generation": generation,
            "seed": self._seed,
            "token_budget": self._budget,
            "over_budget": self._over_budget,
            "shuffle": self._shuffle,
            "weights": "none" if weights is None else " ".join(map(repr, weights)),
            "selection": selected,
            "packing_version": PACKING_VERSION,
        }
        settings: dict[str, Any] = {
            "token_budget": self._budget,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "stream": json_digest(self._fingerprint),
        }
        if follow_timeout is None:
            return Epochs(self.documents, numbers, weights=weights, **settings)
        ranks = self.rank, self.world_size
        growing = GrowingSet(sets[0], timeout=follow_timeout, ranks=ranks)
        return GrowingEpochs(growing, selection, self.documents, **settings)

    def _begin_epoch(self, epoch: int) -> None:
        self._packs = self._epochs.plan(epoch)
        self._epoch = epoch

    def __len__(self) -> int:
        """Steps of the epoch, the same on every rank.

        Raises:
            TypeError: the set is followed and not finished, so nobody knows.
        """
        if not self._packs.is_closed:
            raise TypeError("a set that is followed has no length before it is finished")
        return math.ceil(len(self._packs) / self.world_size)

    @property
    def packs(self) -> list[list[int]]:
        """The epoch's packs in their global order, as numbers of `documents`.

        Of one data set without a selection and with nothing split, those are rows of its index.
        """
        return list(self._packs)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration runs or continues."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; a change starts it from its beginning.

        Raises:
            InputError: a later epoch of a set that is followed and not finished.
        """
        if epoch != self._epoch:
            self._iteration += 1
            self._consumed = 0
            self._begin_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch; afterwards the loader stands at the next one's beginning.

        Raises:
            CorruptionError: of a damaged sample, as `on_error` and `max_skipped` say.
            InputError: the position was changed, or another iteration begun, since this one began;
                or this is a worker process of a `DataLoader`.
            StalledError: the set is followed, and its extraction has come to a standstill.
        """
        refuse_workers()
        self._iteration += 1
        mine = self._iteration
        self.metrics = FeedMetrics()
        for batch in self._batches(mine):
            self._require_current(mine)
            self._consumed = self._end_of_step(self._consumed)
            yield batch
            del batch
        if mine == self._iteration:
            self.set_epoch(self._epoch + 1)

    def _batches(self, mine: int) -> Iterator[Batch]:
        """The rest of the epoch, with what comes to it while it is consumed."""
        more = True
        while more:
            yield from read_ahead(
                steps_of(
                    self._packs,
                    self.documents.lengths,
                    rank=self.rank,
                    world_size=self.world_size,
                    start=self._consumed,
                    token_budget=self._budget,
                ),
                self._reading,
                threads=self._threads,
                prefetch_bytes=self._prefetch_bytes,
                metrics=self.metrics,
                skip=self._failures.add,
                buffers=self._buffers,
                device=self._copies_to,
            )
            if not self._packs.is_closed:
                self._require_current(mine)
            more = self._epochs.grow(self._packs)

    def _require_current(self, mine: int) -> None:
        if mine != self._iteration:
            raise InputError(
                "the loader's position was changed, or another iteration of it begun, while "
                "this one ran: iterate it once at a time, and start anew after a change."
            )

    @cached_property
    def _copies_to(self) -> CudaDevice | None:
        """One for all epochs: torch keeps device memory by the stream that took it."""
        if self._device is None or self._device.type != "cuda":
            return None
        return CudaDevice(self._device)

    def _end_of_step(self, start: int) -> int:
        """The pack after a step's last one: fewer than the ranks are left in the last step."""
        last = start + self.world_size
        return last if self._packs.get(last - 1) is not None else len(self._packs)

    @property
    def skipped(self) -> int:
        """Samples left out so far since their bytes are damaged (`on_error="skip"`)."""
        return self._failures.skipped

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: the same on every rank, and for any world size.

        Counts the packs that were handed out (the one just yielded included), never those
        that were only read ahead.
        """
        return written_state(
            self._fingerprint,
            epoch=self._epoch,
            consumed=self._consumed,
            parts=self._epochs.parts,
            parts_digest=self._epochs.parts_digest,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` stood; the stream after it is the one that would have come.

        Raises:
            MismatchError: the state is of other data sets, generations, seed, budget, selection,
                weights, shuffle or packing version; the message says which.
            CorruptionError: an index part that a followed set had is gone or can't be read.
        """
        require_same_stream(state, self._fingerprint)
        self._iteration += 1
        self._epochs.restore(state["parts"], state["parts_digest"])
        self._begin_epoch(int(state["epoch"]))
        consumed = int(state["consumed"])
        if consumed < 0 or (consumed and self._packs.get(consumed - 1) is None):
            raise MismatchError(
                f"the loader's state counts {consumed} packs of {len(self._packs)}."
            )
        self._consumed = consumed


def _verify_named(verify: Verify | bool) -> Verify:
    if isinstance(verify, bool):
        return "bytes" if verify else "none"
    if verify not in get_args(Verify):
        raise InputError(f"verify is {verify!r}; expected one of {', '.join(get_args(Verify))}.")
    return verify


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
