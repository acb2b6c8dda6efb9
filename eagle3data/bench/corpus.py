"""The samples every case reads or writes: the shape of Kimi-K2.5's states, all in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.bench.machine import available_memory
from eagle3data.schema.axis import choose_axis
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample

HIDDEN, MODEL_LAYERS, VOCABULARY = 7168, 61, 163_840
SHORTEST, LONGEST = 1000, 2400
LAYERS = [2, 30, 58, 61]
TOKEN_BYTES = len(LAYERS) * HIDDEN * 2
_FEWEST_SAMPLES = 8
_BLOCK_VALUES = (1 << 24) - 3
"""A prime, so that no two samples have equal bytes at one place."""

States = npt.NDArray[np.float16]


class Corpus:
    """Samples of `[4, T, 7168]` float16 states, T from 1,000 to 2,400 by default.

    Attributes:
        manifest: of the data set that holds them; its shards are of the size that a large set
            has, whatever the size of this one.
        lengths: T of each sample.
        offsets: where each sample starts on the token axis of that data set.
        nbytes: bytes of all states.
    """

    def __init__(
        self,
        nbytes: int,
        codec: str = "none",
        seed: int = 0,
        tokens: tuple[int, int] = (SHORTEST, LONGEST),
    ) -> None:
        """Make samples of at least `nbytes` together, of so many tokens each.

        Where that is less than eight samples take, they are made shorter, so that their order
        still means something.

        Raises:
            InputError: more than half of the memory that is free.
        """
        if not 0 < nbytes <= available_memory() // 2:
            raise InputError(
                f"--bytes {nbytes:,} is not between 1 and half of the free memory "
                f"({available_memory() // 2:,}): the samples are kept in memory."
            )
        self.lengths = _lengths(nbytes, np.random.default_rng(seed), tokens)
        axis = choose_axis(self.lengths * 1000, HIDDEN * 2)
        self.manifest = Manifest.synthetic(
            hidden_size=HIDDEN,
            num_hidden_layers=MODEL_LAYERS,
            vocab_size=VOCABULARY,
            layers=LAYERS,
            codec=codec,
            axis=axis,
        )
        self.offsets = axis.place(self.lengths)
        self._starts = list(itertools.accumulate(self.lengths, initial=0))
        self._values = _values(self._starts[-1] * len(LAYERS) * HIDDEN, seed)
        self.nbytes = self._values.nbytes

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def shards(self) -> int:
        """Shards of the data set that holds the samples."""
        return self.manifest.storage.axis.shard_of(self.offsets[-1]) + 1

    def states(self, position: int) -> States:
        """`[4, T, 7168]` of one sample, contiguous; a view."""
        row = len(LAYERS) * HIDDEN
        flat = self._values[self._starts[position] * row : self._starts[position + 1] * row]
        return flat.reshape(len(LAYERS), self.lengths[position], HIDDEN)

    def rows(self) -> States:
        """`[rows, 7168]`: every layer of every token, one after another; a view."""
        return self._values.reshape(-1, HIDDEN)

    def sample(self, position: int) -> Sample:
        """One sample with ids and mask, its states not copied."""
        length = self.lengths[position]
        return Sample(
            hidden_states=dict(zip(LAYERS, self.states(position), strict=True)),
            input_ids=(np.arange(length) * 31 + position) % VOCABULARY,
            loss_mask=np.ones(length, dtype=np.uint8),
            sample_id=f"s{position:06d}",
        )

    def buffer(self) -> States:
        """A destination `[4, longest, 7168]` whose every page has been touched."""
        return np.ones((len(LAYERS), max(self.lengths), HIDDEN), dtype=np.float16)

    def random_order(self, seed: int) -> list[int]:
        """All positions, shuffled."""
        return [int(position) for position in np.random.default_rng(seed).permutation(len(self))]

    def shard_rows(self, shard: int) -> Iterator[tuple[int, States]]:
        """Each layer and its `[S, 7168]` rows of one shard, NaN where no sample lies.

        The last shard ends with the last sample's last chunk. One buffer is used again and again:
        write it before taking the next.
        """
        axis = self.manifest.storage.axis
        last = self.offsets[-1] + axis.aligned(self.lengths[-1])
        tokens = min(axis.shard_tokens, last - shard * axis.shard_tokens)
        rows = np.empty((tokens, HIDDEN), dtype=np.float16)
        here = [p for p, offset in enumerate(self.offsets) if axis.shard_of(offset) == shard]
        for slot, layer in enumerate(LAYERS):
            rows[...] = np.nan
            for position in here:
                start = self.offsets[position] % axis.shard_tokens
                rows[start : start + self.lengths[position]] = self.states(position)[slot]
            yield layer, rows


def _lengths(nbytes: int, rng: np.random.Generator, tokens: tuple[int, int]) -> list[int]:
    shortest, longest = tokens
    middle = (shortest + longest) / 2 * TOKEN_BYTES
    scale = min(1.0, nbytes / (_FEWEST_SAMPLES * middle))
    low, high = max(1, int(shortest * scale)), max(1, int(longest * scale))
    lengths: list[int] = []
    while sum(lengths) * TOKEN_BYTES < nbytes:
        lengths.append(int(rng.integers(low, high + 1)))
    return lengths


def _values(count: int, seed: int) -> npt.NDArray[Any]:
    """Normal values rounded to bfloat16, then float16: a random block, repeated."""
    size = min(count, _BLOCK_VALUES)
    block = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
    bits = (block.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    return np.resize(bits.view(np.float32).astype(np.float16), count)
