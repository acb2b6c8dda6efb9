"""What each codec profile costs and saves, and from which medium speed on it wins for reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.bench.corpus import Corpus
from eagle3data.bench.machine import core_count
from eagle3data.bench.report import Table
from eagle3data.bench.turns import Case, take_turns
from eagle3data.readers.dataset import open_dataset
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import Codec
from eagle3data.storage.codecs import ChunkCodec

SAMPLED_BYTES = 256_000_000
"""Bytes of chunks that are encoded and decoded: enough to pass most caches, soon done."""

_CHUNKS_A_TASK = 16

Chunks = list[npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class ProfileCost:
    """One profile on given states; speeds in bytes of states (not of storage) a second.

    Attributes:
        profile: its name.
        smaller: bytes of states by bytes stored.
        encode_one, encode_all: on one core, on all cores.
        decode_one, decode_all: the same, checksums compared.
        wins_from, wins_to: the medium speeds, in stored bytes a second, between which this
            profile reads fastest; None in `wins_to` is no upper end, in `wins_from` never.
    """

    profile: str
    smaller: float
    encode_one: float
    encode_all: float
    decode_one: float
    decode_all: float
    wins_from: float | None = None
    wins_to: float | None = None


def codec_costs(chunks: Chunks, rounds: int) -> list[ProfileCost]:
    """Measure every profile on chunks of one shape, taking turns.

    Args:
        chunks: contiguous `[C, H]` arrays, each of one layer.
        rounds: how often each.
    """
    cases: list[Case] = []
    smaller: dict[Codec, float] = {}
    with ThreadPoolExecutor(core_count()) as pool:
        for profile in Codec:
            codec = ChunkCodec(profile=profile, dtype=chunks[0].dtype, shape=chunks[0].shape)
            stored = [_stored(codec, chunk) for chunk in chunks]
            smaller[profile] = _size(chunks) / _size(stored)
            cases += _cases(codec, chunks, stored, pool)
        speeds = {timing.case.name: timing.speed for timing in take_turns(cases, rounds)}
    costs = [
        ProfileCost(
            profile=profile.value,
            smaller=smaller[profile],
            **{
                name: speeds[f"{profile.value} {name}"]
                for name in ("encode_one", "encode_all", "decode_one", "decode_all")
            },
        )
        for profile in Codec
    ]
    return with_winners(costs)


def _cases(
    codec: ChunkCodec, chunks: Chunks, stored: Chunks, pool: ThreadPoolExecutor
) -> list[Case]:
    outs = [np.ones_like(chunk) for chunk in chunks]

    # A thread takes several chunks at a time, as a read of a sample does.
    groups = [
        slice(first, first + _CHUNKS_A_TASK) for first in range(0, len(chunks), _CHUNKS_A_TASK)
    ]

    def encode(some: slice) -> None:
        # Nothing is kept: what was encoded would fill the memory.
        for chunk in chunks[some]:
            codec.encode(chunk)

    def decode(some: slice) -> None:
        for data, out in zip(stored[some], outs[some], strict=True):
            codec.decode(data, out)

    def encode_one() -> None:
        encode(slice(None))

    def decode_one() -> None:
        decode(slice(None))

    def encode_all() -> None:
        list(pool.map(encode, groups))

    def decode_all() -> None:
        list(pool.map(decode, groups))

    runs: list[Callable[[], None]] = [encode_one, encode_all, decode_one, decode_all]
    return [
        Case(name=f"{codec.profile.value} {run.__name__}", run=run, nbytes=_size(chunks))
        for run in runs
    ]


def _stored(codec: ChunkCodec, chunk: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(codec.encode(chunk).parts), np.uint8)


def with_winners(costs: Sequence[ProfileCost]) -> list[ProfileCost]:
    """Fill in `wins_from` and `wins_to`.

    A medium that gives `m` stored bytes a second gives `m * smaller` bytes of states; decoding
    goes on at the same time on all cores, so a reader gets `min(m * smaller, decode_all)`. A
    smaller profile is ahead while its medium term bounds it, and loses to one that decodes
    faster where that one's medium term passes its decoding: at `m = decode_all / other's
    smaller`. Between two such speeds nothing changes, so each stretch is judged by one speed
    inside it; where two are equal, the one with fewer stored bytes wins.
    """
    turning = sorted({a.decode_all / b.smaller for a in costs for b in costs})
    edges = [0.0, *turning, 2 * turning[-1]]
    won: dict[str, list[tuple[float, float | None]]] = {cost.profile: [] for cost in costs}
    for low, high in pairwise(edges):
        medium = (low + high) / 2
        best = max(costs, key=lambda c: (min(medium * c.smaller, c.decode_all), c.smaller))
        won[best.profile].append((low, None if high == edges[-1] else high))
    return [_won(cost, won[cost.profile]) for cost in costs]


def _won(cost: ProfileCost, stretches: list[tuple[float, float | None]]) -> ProfileCost:
    if not stretches:
        return cost
    facts = {**asdict(cost), "wins_from": stretches[0][0], "wins_to": stretches[-1][1]}
    return ProfileCost(**facts)


def chunks_of_corpus(corpus: Corpus) -> Chunks:
    """Chunks of the synthetic states, all whole: one row is as good as another."""
    chunk, rows = corpus.manifest.storage.chunk_tokens, corpus.rows()
    last = min(len(rows), SAMPLED_BYTES // (chunk * rows[0].nbytes) * chunk)
    return [rows[at : at + chunk] for at in range(0, last - chunk + 1, chunk)]


def chunks_of_set(url: str) -> Chunks:
    """Whole chunks of a real set's samples, in token order, up to `SAMPLED_BYTES`.

    Raises:
        InputError: no data set, or none of its samples fills a chunk.
    """
    dataset = open_dataset(url)
    chunk = dataset.manifest.storage.chunk_tokens
    found: Chunks = []
    for sample in dataset:
        for states in sample.hidden_states.values():
            found += [states[at : at + chunk] for at in range(0, len(states) - chunk + 1, chunk)]
        if _size(found) >= SAMPLED_BYTES:
            break
    if not found:
        raise InputError(f"no sample of {url} fills a chunk, so there is nothing to compress.")
    return found


def codec_table(costs: Sequence[ProfileCost], chunks: Chunks, what: str) -> Table:
    """The costs as text."""
    columns = ["profile", "times smaller", "encode GB/s a core", "encode GB/s all cores"]
    columns += ["decode GB/s a core", "decode GB/s all cores", "reads fastest on media of"]
    rows = [
        [
            cost.profile,
            f"{cost.smaller:.2f}",
            *(
                f"{speed / 1e9:.2f}"
                for speed in (cost.encode_one, cost.encode_all, cost.decode_one, cost.decode_all)
            ),
            _range(cost),
        ]
        for cost in costs
    ]
    rows_of, width = chunks[0].shape
    title = (
        f"Codec profiles on {what}: {len(chunks)} chunks of [{rows_of}, {width}], "
        f"{core_count()} cores"
    )
    return Table(title=title, columns=columns, rows=rows, facts=[asdict(cost) for cost in costs])


def _range(cost: ProfileCost) -> str:
    if cost.wins_from is None:
        return "none"
    if cost.wins_to is None:
        return f"{cost.wins_from / 1e9:.2f} GB/s and more"
    if cost.wins_from == 0:
        return f"up to {cost.wins_to / 1e9:.2f} GB/s"
    return f"{cost.wins_from / 1e9:.2f} to {cost.wins_to / 1e9:.2f} GB/s"


def _size(arrays: Sequence[npt.NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays)
