"""States that another project stored, in the place of an engine that makes them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.extractor.engines.base import Captured, CaptureSettings, Request
from eagle3data.extractor.engines.choice import ImportedStates
from eagle3data.extractor.engines.lent_memory import LentMemory
from eagle3data.interop.choice import open_source
from eagle3data.interop.source import Entry
from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.errors import SampleError
from eagle3data.schema.manifest import StorageDtype
from eagle3data.writers.casting import cast_into

_MAX_THREADS = 8
_AHEAD_BYTES = 128 << 20
"""States that are read at a time; one sample may be larger."""
_SPARE_BYTES = 256 << 20
"""Memory that is kept for the samples to come."""


class ImportEngine:
    """Reads what was captured elsewhere, sample by sample, in threads.

    A sample that can't be read comes back with its problem, so that the others go on.

    Attributes:
        name: `import`.
        version: of this package, which knows the layout.
        compute_dtype: that the states were made in.
        switches: none are known.
    """

    name = "import"

    def __init__(self, imported: ImportedStates, asked: CaptureSettings) -> None:
        """Open the source.

        Raises:
            InputError: it can't be read at all.
        """
        self.version = version("eagle3data")
        self.compute_dtype = asked.compute_dtype
        self.switches: dict[str, str] = {}
        self._asked, self._slots = asked, list(imported.slots)
        self._source = open_source(
            imported.source,
            hidden_size=asked.hidden_size,
        )
        self._entries = {entry.place: entry for entry in self._source.entries()}
        self._wanted = np.dtype(
            np.float16 if asked.storage_dtype is StorageDtype.FLOAT16 else np.uint16
        )
        threads = min(_MAX_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="eagle3data-import")
        # Few large samples are in hand at a time: their layers are what keeps the cores busy.
        self._copiers = ThreadPoolExecutor(threads, thread_name_prefix="eagle3data-copy")
        self._memory = LentMemory(_SPARE_BYTES)

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        """Read the samples of shard after shard; a bounded number of bytes is read ahead."""
        running: dict[Future[Captured], int] = {}
        for group in groups:
            waiting = deque(group or ())
            while waiting or (group is None and running):
                while waiting and (
                    not running or sum(running.values()) + self._nbytes(waiting[0]) <= _AHEAD_BYTES
                ):
                    request = waiting.popleft()
                    running[self._pool.submit(self._captured, request)] = self._nbytes(request)
                yield from _finished(running)
        while running:
            yield from _finished(running)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._copiers.shutdown()

    def _nbytes(self, request: Request) -> int:
        """Of its states, as they are stored."""
        row_bytes = len(self._slots) * self._asked.hidden_size * self._wanted.itemsize
        return len(request.input_ids) * row_bytes

    def _captured(self, request: Request) -> Captured:
        try:
            slots = self._slots_of(request)
        except SampleError as error:
            # The source names a sample by its place, a data set by its id.
            reason = str(error).partition(": ")[2]
            problem = SampleError(error.kind, request.sample_id, f"{request.source}: {reason}")
            return Captured(
                request=request,
                hidden_states={},
                witness_token=None,
                witness_logprob=None,
                problem=problem,
            )
        return self._copied(request, slots)

    def _slots_of(self, request: Request) -> dict[int, npt.NDArray[Any]]:
        """Layers of the source's sample, ascending, each `[T, H]`, as the source holds them."""
        entry = self._entries.get(request.source)
        if entry is None:
            raise SampleError("missing", request.source, "it was there when the import began.")
        self._require_same_tokens(entry, request)
        slots = dict(zip(self._slots, self._source.states(entry), strict=True))
        shape = (len(request.input_ids), self._asked.hidden_size)
        for layer, states in slots.items():
            if states.shape != shape:
                raise SampleError(
                    "length_mismatch",
                    entry.place,
                    f"layer {layer}'s states are {list(states.shape)}, expected {list(shape)}: a "
                    "row for each of its tokens.",
                )
        return dict(sorted(slots.items()))

    def _copied(self, request: Request, slots: dict[int, npt.NDArray[Any]]) -> Captured:
        """The sample in lent memory: what is checked there is what is written."""
        shape = (len(slots), len(request.input_ids), self._asked.hidden_size)
        memory = self._memory.take(self._nbytes(request))
        layers: npt.NDArray[Any] = np.ndarray(shape, self._wanted, memory.data)
        found = self._copiers.map(cast_into, slots.values(), layers)
        return Captured(
            request=request,
            hidden_states=dict(zip(slots, layers, strict=True)),
            witness_token=None,
            witness_logprob=None,
            statistics=dict(zip(slots, found, strict=True)),
            release=partial(self._memory.give_back, memory),
        )

    def _require_same_tokens(self, entry: Entry, request: Request) -> None:
        found = self._source.tokens(entry).input_ids
        if tokens_crc32c(found) != tokens_crc32c(request.input_ids):
            raise SampleError(
                "tokens_mismatch",
                entry.place,
                f"its {len(found)} token ids are not the {len(request.input_ids)} that it had when "
                "the import began; nothing may write to the source meanwhile.",
            )


def _finished(running: dict[Future[Captured], int]) -> Iterator[Captured]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        del running[future]
        yield future.result()
