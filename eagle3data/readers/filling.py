"""One batch on its way: samples read by threads straight into a batch buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from eagle3data.readers.batch import Batch
from eagle3data.readers.documents import Documents
from eagle3data.readers.gathering import gather
from eagle3data.readers.host_buffers import HostBuffers
from eagle3data.readers.sample_cache import CacheCounts
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import StorageDtype
from eagle3data.schema.statistics import layer_statistics, stored_faults
from eagle3data.storage import layout

Verify = Literal["states", "bytes", "none"]

_TORCH_DTYPE = {StorageDtype.FLOAT16: torch.float16, StorageDtype.BFLOAT16: torch.bfloat16}

_STATES_BYTES = 4 << 20
"""Of a layer, read together: more leaves a core's caches before its checksum is taken."""
_TOKENS = 1 << 16
"""Tokens whose ids and masks are read together."""

Failure = tuple[int, CorruptionError]
"""A member's place in its batch, and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What every batch of a loader is read by.

    Attributes:
        documents: what batches are made of.
        layers: canonical ids, in the order of a batch's first dimension.
        token_budget: T, rows of a batch.
        verify: how closely every sample is checked.
    """

    documents: Documents
    layers: Sequence[int]
    token_budget: int
    verify: Verify

    def cache_counts(self) -> CacheCounts | None:
        """What the data sets' caches have done so far; None without one."""
        caches = [one.cache for one in self.documents.sets if one.cache is not None]
        return sum((one.counts for one in caches), CacheCounts()) if caches else None

    def states(self, layer: int, document: int, out: npt.NDArray[Any]) -> None:
        """Read one layer of a document into `[T, H]`, in the calling thread.

        Raises:
            CorruptionError: damaged bytes, or states that are not those of the index.
        """
        documents = self.documents
        documents.read_states(layer, document, out, verify=self.verify != "none")
        if self.verify != "states":
            return
        stated = documents.stated_statistics(document, layer)
        for kind, detail in stored_faults(layer_statistics(out), stated, len(out)):
            raise CorruptionError(
                kind,
                detail,
                url=documents.dataset(document).url,
                array=layout.states_array(layer),
                shard=documents.shard(document),
                sample_id=documents.sample_id(document),
            )

    @property
    def can_gather(self) -> bool:
        """Whether documents can be read together, and nothing is asked of each alone."""
        return self.verify != "states" and all(one.can_gather for one in self.documents.sets)

    def gathered_states(self, layer: int, documents: Sequence[int], out: npt.NDArray[Any]) -> bool:
        """Read one layer of some documents into `[T, H]`, one after the other, by few calls.

        Returns:
            Whether that could be done, and all of them are whole; else `out` means nothing.
        """
        return self._gathered(layout.states_array(layer), documents, out)

    def gathered_tokens(
        self, documents: Sequence[int], ids: npt.NDArray[np.int32], mask: npt.NDArray[np.uint8]
    ) -> bool:
        """Read ids and masks of some documents into `[T]` each, one after the other, by few calls.

        Returns:
            Whether that could be done, and they are whole and the index's; else they mean nothing.
        """
        stated = self.documents.stated_tokens(documents)
        return (
            stated is not None
            and self._gathered(layout.INPUT_IDS, documents, ids)
            and self._gathered(layout.LOSS_MASK, documents, mask)
            and np.array_equal(ids, stated[0])
            and np.array_equal(mask, stated[1])
        )

    def _gathered(self, array: str, documents: Sequence[int], out: npt.NDArray[Any]) -> bool:
        stored = []
        for document in documents:
            if (one := self.documents.stored(array, document)) is None:
                return False
            stored.append(one)
        return gather(stored, out, verify=self.verify != "none")

    def tokens(
        self, document: int, ids: npt.NDArray[np.int32], mask: npt.NDArray[np.uint8]
    ) -> None:
        """Read ids and mask of a document into `[T]` each.

        Raises:
            CorruptionError: damage, or not those of the index.
        """
        ids[:], mask[:] = self.documents.read_tokens(document, verify=self.verify != "none")


class Filling:
    """A batch that threads are filling.

    Attributes:
        tokens: of its documents.
    """

    def __init__(
        self,
        reading: Reading,
        members: Sequence[int],
        buffers: HostBuffers,
        pool: ThreadPoolExecutor,
    ) -> None:
        """Begin.

        Args:
            reading: how.
            members: the documents, in the order in which they lie in the batch.
            buffers: whose `[L, T, H]` is filled; what one holds is overwritten everywhere.
            pool: the threads.
        """
        self._reading, self._members, self._buffers = reading, members, buffers
        self._states = states = buffers.take()
        budget = reading.token_budget
        self._input_ids = buffers.zeros(budget, dtype=torch.int32)
        self._loss_mask = buffers.zeros(budget, dtype=torch.uint8)
        self._ids, self._mask = self._input_ids.numpy(), self._loss_mask.numpy()
        lengths = [reading.documents.length(document) for document in members]
        self._bounds: list[int] = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]
        self.tokens = self._bounds[-1]
        # Of a set that is far away each sample is a request of its own, all at once.
        together = reading.can_gather
        row_bytes = states[0, 0].nbytes
        sizes = [length * row_bytes for length in lengths]
        self._work: list[Future[list[Failure]]] = [
            pool.submit(self._read_layer, layer, group)
            for group in _groups(sizes, _STATES_BYTES if together else 0)
            for layer in range(len(states))
        ]
        self._work += [
            pool.submit(self._read_tokens, group)
            for group in _groups(lengths, _TOKENS if together else 0)
        ]
        self._rest = [pool.submit(_clear, layer[self.tokens :]) for layer in states]

    def _read_layer(self, number: int, group: range) -> list[Failure]:
        """Fill a layer's rows of some members; what is damaged."""
        layer, states = self._reading.layers[number], self._states[number]
        if len(group) > 1:
            rows = states[self._bounds[group.start] : self._bounds[group.stop]]
            documents = [self._members[at] for at in group]
            if self._reading.gathered_states(layer, documents, rows):
                return []
        return _failures(
            group, lambda at: self._reading.states(layer, self._members[at], states[self._rows(at)])
        )

    def _read_tokens(self, group: range) -> list[Failure]:
        """Fill ids and masks of some members; what is damaged."""
        if len(group) > 1:
            rows = slice(self._bounds[group.start], self._bounds[group.stop])
            documents = [self._members[at] for at in group]
            if self._reading.gathered_tokens(documents, self._ids[rows], self._mask[rows]):
                return []

        def read(at: int) -> None:
            own = self._rows(at)
            self._reading.tokens(self._members[at], self._ids[own], self._mask[own])

        return _failures(group, read)

    def _rows(self, at: int) -> slice:
        return slice(self._bounds[at], self._bounds[at + 1])

    @property
    def is_done(self) -> bool:
        """Whether `batch` would not wait."""
        return all(future.done() for future in self._all())

    def batch(self, skip: Callable[[int, CorruptionError], None]) -> Batch:
        """Wait, and put it together.

        Args:
            skip: called with a damaged document and its error; the batch is made without
                the sample unless this raises.

        Raises:
            Exception: whatever a thread met.
        """
        for cleared in self._rest:
            cleared.result()
        failed: dict[int, CorruptionError] = {}
        for work in self._work:
            for at, error in work.result():
                failed.setdefault(at, error)
        for at in sorted(failed):
            skip(self._members[at], failed[at])
        if failed:
            self._close_up([at for at in range(len(self._members)) if at not in failed])
        return self._assembled()

    def drop(self) -> None:
        """Nobody wants it any more: what has not begun is not done; what has is waited for."""
        for future in self._all():
            future.cancel()
        wait(list(self._all()))

    def _all(self) -> Iterator[Future[Any]]:
        return chain(self._work, self._rest)

    def _close_up(self, kept: Sequence[int]) -> None:
        """Move the samples that are whole together, and zero what is left over."""
        bounds = [0]
        for at in kept:
            old = self._rows(at)
            new = slice(bounds[-1], bounds[-1] + old.stop - old.start)
            if new != old:
                for rows in (*self._states, self._ids, self._mask):
                    rows[new] = rows[old].copy()
            bounds.append(new.stop)
        for rows in (*self._states, self._ids, self._mask):
            rows[bounds[-1] : self.tokens] = 0
        self._members = [self._members[at] for at in kept]
        self._bounds, self.tokens = bounds, bounds[-1]

    def _assembled(self) -> Batch:
        budget, zeros = self._reading.token_budget, self._buffers.zeros
        positions = zeros(budget, dtype=torch.int32)
        documents = zeros(budget, dtype=torch.int32).fill_(-1)
        corpus = self._reading.documents
        for at, document in enumerate(self._members):
            rows = self._rows(at)
            first = corpus.first(document)
            positions.numpy()[rows] = np.arange(first, first + rows.stop - rows.start)
            documents.numpy()[rows] = at
        bounds = zeros(len(self._bounds), dtype=torch.int32)
        bounds.numpy()[:] = self._bounds
        return Batch(
            hidden_states=torch.from_numpy(self._states).view(
                _TORCH_DTYPE[corpus.manifest.storage.dtype]
            ),
            layers=list(self._reading.layers),
            input_ids=self._input_ids,
            loss_mask=self._loss_mask,
            position_ids=positions,
            document_ids=documents,
            cu_seqlens=bounds,
            sample_ids=[corpus.sample_id(document) for document in self._members],
            tokens=self.tokens,
        )


def _groups(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Members in a row whose sizes come to so much at most; those that are larger alone."""
    first = size = 0
    for at, own in enumerate(sizes):
        if at > first and size + own > most:
            yield range(first, at)
            first, size = at, 0
        size += own
    if first < len(sizes):
        yield range(first, len(sizes))


def _failures(group: range, read: Callable[[int], None]) -> list[Failure]:
    failed = []
    for at in group:
        try:
            read(at)
        except CorruptionError as error:
            failed.append((at, error))
    return failed


def _clear(rows: npt.NDArray[Any]) -> None:
    """Zero contiguous rows; byte by byte is how numpy does it fastest."""
    rows.reshape(-1).view(np.uint8).fill(0)
