"""One batch on its way: samples read by threads straight into a batch buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from eagle3data.readers.batch import Batch
from eagle3data.readers.host_buffers import HostBuffers
from eagle3data.readers.reading import Reading
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import StorageDtype

_TORCH_DTYPE = {StorageDtype.FLOAT16: torch.float16, StorageDtype.BFLOAT16: torch.bfloat16}

_SMALL_BYTES = 4 << 20
"""Of a layer: a sample that has more is read by itself."""
_STATES_BYTES = 32 << 20
"""Of a layer of small samples, read together."""
_TOKENS = 1 << 16
"""Of documents that are read together; more would take large tables for their checksums."""

Failure = tuple[int, CorruptionError]
"""A member's place in its batch, and what is wrong with it."""


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
        lengths = reading.documents.lengths[np.asarray(members, np.int64)].tolist()
        self._bounds: list[int] = [0, *accumulate(lengths)]
        self.tokens = self._bounds[-1]
        # Of a set that is far away each sample is a request of its own, all at once.
        most = _TOKENS if reading.can_gather else 0
        row_bytes = states[0, 0].nbytes
        self._work: list[Future[list[Failure]]] = []
        for group in _groups(
            lengths, _SMALL_BYTES // row_bytes, min(most, _STATES_BYTES // row_bytes)
        ):
            if len(group) > 1:
                self._work.append(pool.submit(self._read_layers, group))
            else:
                self._work += [
                    pool.submit(self._read_layer, layer, group) for layer in range(len(states))
                ]
        self._work += [
            pool.submit(self._read_tokens, group) for group in _groups(lengths, most, most)
        ]
        self._rest = [pool.submit(_clear, part) for part in _parts(states[:, self.tokens :])]

    def _read_layers(self, group: range) -> list[Failure]:
        """Fill all layers' rows of some members; what is damaged."""
        members, first = self._members[group.start : group.stop], self._bounds[group.start]
        whole = self._reading.gathered_states(members, self._states, first)
        return [
            failure
            for number, is_whole in enumerate(whole)
            if not is_whole
            for failure in self._read_layer(number, group)
        ]

    def _read_layer(self, number: int, group: range) -> list[Failure]:
        """Fill a layer's rows of some members; what is damaged."""
        layer, states = self._reading.layers[number], self._states[number]
        return _failures(
            group, lambda at: self._reading.states(layer, self._members[at], states[self._rows(at)])
        )

    def _read_tokens(self, group: range) -> list[Failure]:
        """Fill ids and masks of some members; what is damaged."""
        if len(group) > 1:
            rows = slice(self._bounds[group.start], self._bounds[group.stop])
            members = self._members[group.start : group.stop]
            if self._reading.gathered_tokens(members, self._ids[rows], self._mask[rows]):
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
        starts = np.array(self._bounds)
        lengths, rows = np.diff(starts), slice(self.tokens)
        before = np.repeat(corpus.firsts(self._members) - starts[:-1], lengths)
        positions.numpy()[rows] = np.arange(self.tokens) + before
        documents.numpy()[rows] = np.repeat(np.arange(len(lengths)), lengths)
        bounds = zeros(len(self._bounds), dtype=torch.int32)
        bounds.numpy()[:] = starts
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
            sample_ids=corpus.sample_ids(self._members),
            tokens=self.tokens,
        )


def _groups(lengths: Sequence[int], small: int, most: int) -> Iterator[range]:
    """Members in a row that are small and whose tokens come to so many at most; others alone."""
    first = tokens = 0
    for at, own in enumerate(lengths):
        if at > first and (tokens + own > most or own > small or tokens > most):
            yield range(first, at)
            first, tokens = at, 0
        tokens += own if own <= small else most + 1
    if first < len(lengths):
        yield range(first, len(lengths))


def _parts(rows: npt.NDArray[Any]) -> Iterable[npt.NDArray[Any]]:
    """`[L, T, H]` in pieces that are each worth a thread's while."""
    if not rows.size:
        return []
    return [rows] if rows.nbytes < _STATES_BYTES else rows[:, None]


def _failures(group: range, read: Callable[[int], None]) -> list[Failure]:
    failed = []
    for at in group:
        try:
            read(at)
        except CorruptionError as error:
            failed.append((at, error))
    return failed


def _clear(rows: npt.NDArray[Any]) -> None:
    """Zero `[L, T, H]`, each layer contiguous; byte by byte is how numpy does it fastest."""
    for layer in rows:
        layer.reshape(-1).view(np.uint8).fill(0)
