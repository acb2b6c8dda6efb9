"""Who comes when: a permutation of samples that anyone can recompute from three integers.

The order of an epoch sorts positions by a 64-bit key, `mix(mix(mix(seed) + epoch) + position)`,
where `mix` is the SplitMix64 finaliser. It depends on no library's random generator, so it
is the same on every machine and in every version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
    seeded = mix(np.array([seed % 2**64], dtype=np.uint64))
    of_epoch = mix(seeded + np.array([epoch], dtype=np.uint64))
    positions: npt.NDArray[np.uint64] = np.arange(samples, dtype=np.uint64)
    keys = mix(of_epoch + positions)
    return np.argsort(keys, kind="stable").astype(np.int64)
