"""The token axis: where samples, chunks and shards lie, and what they cost in bytes.

Shard `k` holds tokens `[k*S, (k+1)*S)`. A sample starts on a chunk boundary and never
crosses a shard, so reading it touches its own chunks only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eagle3data.schema.errors import InputError

CHUNK_TOKENS_CHOICES = (128, 64, 32, 16)
TARGET_CHUNK_BYTES = 1 << 20
TARGET_OBJECT_BYTES = 250_000_000
MAX_UNUSED_SHARE = 0.03
MIN_SHARDS = 16
"""A shard is the unit of work and of loss, so a small set is still cut into about this many."""


@dataclass(frozen=True, kw_only=True)
class TokenAxis:
    """Shard and chunk arithmetic of one data set.

    Attributes:
        shard_tokens: S, tokens a shard spans; a multiple of `chunk_tokens`.
        chunk_tokens: C, tokens a chunk spans; a power of two.
    """

    shard_tokens: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        c, s = self.chunk_tokens, self.shard_tokens
        if c < 1 or c & (c - 1):
            raise InputError(f"chunk_tokens is {c}; it must be a power of two.")
        if s < c or s % c:
            raise InputError(f"shard_tokens is {s}; it must be a positive multiple of {c}.")

    @property
    def chunks_per_shard(self) -> int:
        return self.shard_tokens // self.chunk_tokens

    def aligned(self, length: int) -> int:
        """Tokens of the axis that a sample of `length` tokens takes, up to its last chunk's end."""
        return -(-length // self.chunk_tokens) * self.chunk_tokens

    def shard_of(self, token_offset: int) -> int:
        return token_offset // self.shard_tokens

    def chunks_of(self, token_offset: int, length: int) -> range:
        """Chunk numbers, within their shard, that hold the sample at `token_offset`."""
        first = token_offset % self.shard_tokens // self.chunk_tokens
        return range(first, first + self.aligned(length) // self.chunk_tokens)

    def place(self, lengths: Iterable[int], first_shard: int = 0) -> list[int]:
        """Lay samples out in order: a sample that doesn't fit in the shard opens the next one.

        Args:
            lengths: tokens of each sample, in order.
            first_shard: the shard that takes the first sample.

        Returns:
            The token offset of each sample.

        Raises:
            InputError: a sample is empty or longer than a shard.
        """
        offsets = []
        cursor = first_shard * self.shard_tokens
        for position, length in enumerate(lengths):
            if not 0 < length <= self.shard_tokens:
                raise InputError(
                    f"sample {position} has {length} tokens; a shard of this data set holds "
                    f"1 to {self.shard_tokens}. Plan with a larger --shard-tokens."
                )
            room = self.shard_tokens - cursor % self.shard_tokens
            if self.aligned(length) > room:
                cursor += room
            offsets.append(cursor)
            cursor += self.aligned(length)
        return offsets


def choose_axis(
    lengths: Sequence[int], row_bytes: int, shard_tokens: int | None = None
) -> TokenAxis:
    """Pick C and S for a set of samples.

    C is the power of two from 16 to 128 that comes closest to 1 MiB a chunk from below, made
    smaller until the rows between a sample's end and its chunk's end are under 3 % of the
    tokens. S makes an object of about 250 MB, holds the longest sample, and leaves a small
    set in about `MIN_SHARDS` shards.

    Args:
        lengths: tokens of each sample.
        row_bytes: bytes of one token's state at one layer (hidden size x item size).
        shard_tokens: S if the caller wants a given one; rounded up to a multiple of C.
    """
    if not lengths:
        raise InputError("there are no samples to plan for.")
    total = sum(lengths)
    candidates = [c for c in CHUNK_TOKENS_CHOICES if c * row_bytes <= TARGET_CHUNK_BYTES]
    chunk = CHUNK_TOKENS_CHOICES[-1]
    for candidate in candidates:
        unused = sum(-length % candidate for length in lengths)
        if unused <= MAX_UNUSED_SHARE * total:
            chunk = candidate
            break
    longest = max(lengths)
    wanted = min(TARGET_OBJECT_BYTES // row_bytes, -(-total // MIN_SHARDS))
    if shard_tokens is not None:
        wanted = shard_tokens
    if wanted < longest and shard_tokens is not None:
        raise InputError(
            f"--shard-tokens {shard_tokens} is less than the longest sample, {longest} tokens."
        )
    wanted = max(wanted, longest)
    return TokenAxis(shard_tokens=-(-wanted // chunk) * chunk, chunk_tokens=chunk)


@dataclass(frozen=True, kw_only=True)
class SizeArithmetic:
    """What a set of this shape takes, before anything is written.

    Attributes:
        tokens: tokens of all samples.
        layers: captured layers.
        hidden_size: width of a state.
        item_bytes: bytes of one number as stored.
        aligned_tokens: tokens including the unused rows of each sample's last chunk.
    """

    tokens: int
    layers: int
    hidden_size: int
    item_bytes: int
    aligned_tokens: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's states over all layers."""
        return self.layers * self.hidden_size * self.item_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the states alone, uncompressed, without chunk tails."""
        return self.tokens * self.token_bytes

    def padding_free_bytes(self, codec: str) -> int:
        """Bytes expected of the states alone with a codec profile, without chunk tails."""
        return round(self.state_bytes / EXPECTED_RATIO[codec])

    def stored_bytes(self, codec: str) -> int:
        """Bytes expected on disk with a codec profile, chunk tails included."""
        return round(self.aligned_tokens * self.token_bytes / EXPECTED_RATIO[codec])


EXPECTED_RATIO = {"none": 1.0, "lz4": 1.23, "pcodec": 1.48}
"""How much smaller bf16 states cast to FP16 became in each profile (SmolLM2-135M, four layers).

The entropy of such states is about 10.5 bits of 16, so no lossless codec passes about 1.51.
"""
