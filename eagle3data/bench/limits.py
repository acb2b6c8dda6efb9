"""What this machine can do at most with the same bytes: copies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from eagle3data.bench.corpus import Corpus, States
from eagle3data.schema.digest import crc32c

RAW_COPY = "raw copy in memory"


def raw_copy(corpus: Corpus, order: Sequence[int], out: States) -> None:
    """Copy every sample out of memory into the buffer, on one thread."""
    for position in order:
        out[:, : corpus.lengths[position]] = corpus.states(position)


def raw_copy_shared(corpus: Corpus, order: Sequence[int], out: States, threads: int) -> None:
    """The same with the rows of each layer shared out to threads."""
    with ThreadPoolExecutor(threads) as pool:
        for position in order:
            pairs = [
                pair
                for into, states in zip(out, corpus.states(position), strict=True)
                for pair in zip(
                    np.array_split(into[: len(states)], threads),
                    np.array_split(states, threads),
                    strict=True,
                )
            ]
            list(pool.map(lambda pair: np.copyto(*pair), pairs))


def checked_copy(corpus: Corpus, order: Sequence[int], out: States) -> None:
    """Copy a chunk, checksum the copy while it is in the cache, go on: one thread's bound."""
    rows = corpus.manifest.storage.chunk_tokens
    for position in order:
        for into, states in zip(out, corpus.states(position), strict=True):
            for start in range(0, len(states), rows):
                chunk = states[start : start + rows]
                copied = into[start : start + len(chunk)]
                copied[...] = chunk
                crc32c(copied.data.cast("B"))
