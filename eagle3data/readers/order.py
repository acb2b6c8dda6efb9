"""Who comes when: a permutation of samples that anyone can recompute from three integers.

The order of an epoch sorts positions by a 64-bit key, `mix(mix(mix(seed) + epoch) + position)`,
where `mix` is the SplitMix64 finaliser. It depends on no library's random generator, so it
is the same on every machine and in every version.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import InputError

Shuffle = Literal["global", "shard", "none"]

WINDOW_SHARDS = 16
"""Shards that `shuffle="shard"` reads from at a time."""

SHARDS_SEED = 0
DEAL_SEEDS = 1
ROUND_SEEDS = 1 << 32
"""Numbers of derived seeds: of the shards, of each mixed set, of each round of a growing set."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64: a well-mixed 64-bit value for each input value, modulo 2**64."""
    mixed = values + _GAMMA
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        mixed = (mixed ^ (mixed >> shift)) * multiplier
    return mixed ^ (mixed >> _SHIFTS[2])


def epoch_order(samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Positions `0..samples-1` in the order of an epoch, `[samples]` int64."""
    positions: npt.NDArray[np.uint64] = np.arange(samples, dtype=np.uint64)
    keys = mix(_keyed(seed, epoch) + positions)
    return np.argsort(keys, kind="stable").astype(np.int64)


def derived_seed(seed: int, number: int) -> int:
    """Another seed, for an order that has nothing to do with the first one's."""
    return int(_keyed(seed, (1 << 63) + number)[0])


def _keyed(seed: int, number: int) -> npt.NDArray[np.uint64]:
    seeded = mix(np.array([seed % 2**64], dtype=np.uint64))
    return mix(seeded + np.array([number % 2**64], dtype=np.uint64))


def shuffle_named(shuffle: Shuffle | bool) -> Shuffle:
    """The name of a shuffle; true is `global`, false `none`.

    Raises:
        InputError: there is no such one.
    """
    if isinstance(shuffle, bool):
        return "global" if shuffle else "none"
    if shuffle not in get_args(Shuffle):
        raise InputError(f"shuffle is {shuffle!r}; expected one of {', '.join(get_args(Shuffle))}.")
    return shuffle


def shard_order(places: npt.NDArray[np.int64], seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Positions in an order that reads `WINDOW_SHARDS` shards at a time, `[samples]` int64.

    Shards are permuted; the samples of each `WINDOW_SHARDS` that follow each other come in the
    order that `epoch_order` has them in.

    Args:
        places: `[samples, k]`; samples with equal rows lie in one shard.
        seed: of the order.
        epoch: its number.
    """
    packed = np.zeros(len(places), np.int64)  # a number that orders as the rows do
    for column in places.T:
        packed = packed * (int(column.max(initial=0)) + 1) + column
    distinct, shard_of = np.unique(packed, return_inverse=True)
    shards = len(distinct)
    window = np.empty(shards, np.int64)
    shuffled = epoch_order(shards, derived_seed(seed, SHARDS_SEED), epoch)
    window[shuffled] = np.arange(shards) // WINDOW_SHARDS
    order = epoch_order(len(places), seed, epoch)
    return order[np.argsort(window[shard_of[order]], kind="stable")]
