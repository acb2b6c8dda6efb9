"""A part of a far data set kept on a local disk: always the same samples, checked on every hit.

Under a fresh permutation each epoch, a cache that keeps what was read last hits almost nothing of
a set that is larger. So which samples are kept follows from the set's generation alone: they are
ordered by a hash, and the first ones that the limit holds are kept, from the first time that they
are read. The share of bytes that comes from the cache is then the share that it holds, for every
rank, in every epoch after the first.

A copy of a sample's array is a file: `<chunks>` and the bytes of each, their CRC32C, then the
chunks as they are stored, each with its own.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from eagle3data.readers.order import epoch_order
from eagle3data.schema.digest import crc32c
from eagle3data.schema.manifest import Codec, Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import chunk_codec
from eagle3data.storage.cache_folder import CacheFolder
from eagle3data.storage.codecs import CHECKSUM_BYTES, ChunkCodec, ChunkError
from eagle3data.storage.shard_decoder import ShardDecoder
from eagle3data.storage.shard_encoder import NOT_STORED

logger = logging.getLogger(__name__)

_COUNT = struct.Struct("<Q")
Bytes = npt.NDArray[np.uint8]


class ChunkReader(Protocol):
    """Where rows of chunks come from: a shard, or the cache before it."""

    def will_read(self, chunks: range) -> None:
        """Say which chunks are read soon; may do nothing."""

    def read(
        self, chunks: range, out: npt.NDArray[Any], sample_id: str, *, verify: bool = True
    ) -> None:
        """As `ShardDecoder.read`."""


@dataclass(frozen=True)
class CacheCounts:
    """What a cache has done; of a sample each array counts.

    Attributes:
        hits: reads that it served.
        misses: reads that went to the data set; `hits` and these are all reads.
        hit_bytes: stored bytes that came from it.
        miss_bytes: stored bytes that came from the data set.
        mended: copies that were damaged, and fetched anew.
    """

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    mended: int = 0

    def __add__(self, other: CacheCounts) -> CacheCounts:
        return CacheCounts(*(a + b for a, b in zip(self._all(), other._all(), strict=True)))

    def __sub__(self, other: CacheCounts) -> CacheCounts:
        return CacheCounts(*(a - b for a, b in zip(self._all(), other._all(), strict=True)))

    def _all(self) -> tuple[int, ...]:
        return self.hits, self.misses, self.hit_bytes, self.miss_bytes, self.mended

    @property
    def hit_share(self) -> float:
        """Share of the bytes that came from the cache."""
        total = self.hit_bytes + self.miss_bytes
        return self.hit_bytes / total if total else 0.0


class SampleCache:
    """Which samples are kept, and reading them through their copies; safe from many threads.

    Attributes:
        folder: where the copies are.
        counts: what it has done so far.
    """

    def __init__(
        self,
        folder: CacheFolder,
        manifest: Manifest,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        *,
        generation: str,
        shard_reader: Callable[[str, int], ShardDecoder],
    ) -> None:
        """Nothing is chosen or read yet.

        Args:
            folder: where copies go.
            manifest: of the data set.
            offsets: `[samples]`, first token of each sample of the generation, on the token axis.
            lengths: `[samples]`, tokens of each.
            generation: hexadecimal digits that name it.
            shard_reader: as `Dataset.shard_reader`.
        """
        self.folder = folder
        self.counts = CacheCounts()
        self._manifest, self._axis = manifest, manifest.storage.axis
        self._offsets, self._lengths = offsets, lengths
        self._generation = generation
        self._shard_reader = shard_reader
        self._arrays: list[str] = []
        self._kept: npt.NDArray[np.bool_] | None = None
        self._lock = threading.Lock()

    def serve(self, layers: Sequence[int]) -> None:
        """Say which layers are read, so that no room is kept for others.

        What several readers say adds up; all layers where nobody says anything.
        """
        named = [layout.states_array(layer) for layer in layers]
        with self._lock:
            self._arrays += [array for array in named if array not in self._arrays]
            self._kept = None

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """`[samples]`, whether a sample is kept: a function of generation, limit and layers.

        Raises:
            CorruptionError: of a compressed set, whose chunks' sizes can't be read.
        """
        with self._lock:
            if self._kept is None:
                self._kept = self._choose()
                self._drop_others(self._kept)
            return self._kept

    @property
    def share(self) -> float:
        """Share of the tokens that are kept, so of the reads that will be hits."""
        return float(self._lengths[self.kept].sum() / self._lengths.sum())

    def reader(self, array: str, position: int) -> ChunkReader:
        """What to read a sample's array from."""
        if self.kept[position]:
            return _KeptSample(self, array, position)
        return _Counted(self, self.shard_of(array, position))

    def shard_of(self, array: str, position: int) -> ShardDecoder:
        """The shard that holds a sample's array."""
        return self._shard_reader(array, self._axis.shard_of(int(self._offsets[position])))

    def chunks_of(self, position: int) -> range:
        """A sample's chunks in its shard."""
        return self._axis.chunks_of(int(self._offsets[position]), int(self._lengths[position]))

    def codec(self, array: str) -> ChunkCodec:
        """How chunks of an array are stored."""
        return chunk_codec(self._manifest, array)

    def count(self, done: CacheCounts) -> None:
        """Add to the counts."""
        with self._lock:
            self.counts += done

    def name(self, array: str, position: int) -> str:
        """Of a copy: by the sample's place, which never holds another sample in a generation."""
        offset = int(self._offsets[position])
        return f"{offset >> 24:x}/{offset:x}-{array.replace('/', '-')}"

    def _choose(self) -> npt.NDArray[np.bool_]:
        arrays = self._arrays or [layout.states_array(layer) for layer in self._manifest.layers]
        arrays = [*arrays, layout.INPUT_IDS, layout.LOSS_MASK]
        chunk_bytes = sum(map(self._chunk_bytes, arrays)) + _COUNT.size * len(arrays)
        chunks = -(-self._lengths.astype(np.int64) // self._axis.chunk_tokens)
        costs = chunks * chunk_bytes + (_COUNT.size + CHECKSUM_BYTES) * len(arrays)
        order = epoch_order(len(costs), int(self._generation, 16), 0)
        kept = np.zeros(len(costs), dtype=bool)
        kept[order[np.cumsum(costs[order]) <= self.folder.limit]] = True
        return kept

    def _chunk_bytes(self, array: str) -> float:
        """Stored bytes of a chunk; of a compressed array, its first shard's average."""
        codec = self.codec(array)
        if codec.profile is Codec.NONE or not len(self._offsets):
            return codec.raw_bytes + CHECKSUM_BYTES
        index = self._shard_reader(array, self._axis.shard_of(int(self._offsets[0]))).index
        return float(index[index[:, 0] != NOT_STORED, 1].mean())

    def _drop_others(self, kept: npt.NDArray[np.bool_]) -> None:
        """Where the limit was lowered: make room for what is kept now."""
        if self.folder.used() <= self.folder.limit:
            return
        wanted = {f"{offset:x}" for offset in self._offsets[kept].tolist()}
        for name in self.folder.names():
            if name.rpartition("/")[2].partition("-")[0] not in wanted:
                self.folder.discard(name)


@dataclass(frozen=True)
class _Counted:
    """A shard, read past the cache."""

    cache: SampleCache
    shard: ShardDecoder

    def will_read(self, chunks: range) -> None:
        self.shard.will_read(chunks)

    def read(
        self, chunks: range, out: npt.NDArray[Any], sample_id: str, *, verify: bool = True
    ) -> None:
        self.shard.read(chunks, out, sample_id, verify=verify)
        nbytes = int(self.shard.index[chunks.start : chunks.stop, 1].sum())
        self.cache.count(CacheCounts(misses=1, miss_bytes=nbytes))


class _KeptSample:
    """One array of a sample that is kept: read from its copy, which is made where there is none."""

    def __init__(self, cache: SampleCache, array: str, position: int) -> None:
        self._cache, self._array, self._position = cache, array, position
        self._chunks = cache.chunks_of(position)
        self._codec = cache.codec(array)
        self._name = cache.name(array, position)

    def will_read(self, chunks: range) -> None:
        """Do nothing: the copy may be all that is read."""

    def read(
        self, chunks: range, out: npt.NDArray[Any], sample_id: str, *, verify: bool = True
    ) -> None:
        # Checked whether asked for or not: a local disk is one more place where bytes go bad.
        del verify
        try:
            if self._hit(chunks, out):
                return
        except (ChunkError, OSError) as error:
            logger.warning(
                "the cached copy %s of sample %s is damaged (%s); fetching it again",
                self._name,
                sample_id,
                error,
            )
            self._cache.folder.discard(self._name)
            self._cache.count(CacheCounts(mended=1))
        self._fetch(chunks, out, sample_id)

    def _hit(self, chunks: range, out: npt.NDArray[Any]) -> bool:
        file = self._cache.folder.open(self._name)
        if file is None:
            return False
        data = file.read(0, file.size)
        bounds = _bounds(data, len(self._chunks))
        rows = self._codec.shape[0]
        for number in chunks:
            at = number - self._chunks.start
            row = (number - chunks.start) * rows
            self._codec.decode(data[bounds[at] : bounds[at + 1]], out[row : row + rows])
        first, last = chunks.start - self._chunks.start, chunks.stop - self._chunks.start
        self._cache.count(CacheCounts(hits=1, hit_bytes=bounds[last] - bounds[first]))
        return True

    def _fetch(self, chunks: range, out: npt.NDArray[Any], sample_id: str) -> None:
        """Read the whole sample, whatever part was asked for, and keep it if it is sound."""
        shard = self._cache.shard_of(self._array, self._position)
        stored = list(shard.stored(self._chunks, sample_id))
        asked = [(number, data) for number, data in stored if number in chunks]
        shard.decode(asked, chunks.start, out, sample_id)
        data = [part for _, part in stored]
        nbytes = sum(len(part) for part in data)
        self._cache.count(CacheCounts(misses=1, miss_bytes=nbytes))
        try:
            for number, part in stored:
                if number not in chunks:
                    self._codec.verify(part)
        except ChunkError:
            return  # whoever asks for that part will be told
        self._cache.folder.put(self._name, [_header(data), *(part.data for part in data)])


def _header(parts: Sequence[Bytes]) -> bytes:
    header = b"".join(_COUNT.pack(number) for number in (len(parts), *map(len, parts)))
    return header + crc32c(header).to_bytes(CHECKSUM_BYTES, "little")


def _bounds(data: Bytes, chunks: int) -> list[int]:
    """Where each chunk of a copy begins, and where the last one ends.

    Raises:
        ChunkError: the copy is not one of so many chunks.
    """
    size = _COUNT.size * (chunks + 1)
    header = data[: size + CHECKSUM_BYTES].tobytes()
    stored = int.from_bytes(header[size:], "little")
    if len(header) < size + CHECKSUM_BYTES or crc32c(header[:size]) != stored:
        raise ChunkError("its beginning is not what was written")
    count, *sizes = np.frombuffer(header[:size], "<u8").tolist()
    bounds = list(accumulate(sizes, initial=len(header)))
    if count != chunks or bounds[-1] != len(data):
        raise ChunkError(f"it has {len(data)} bytes, expected {bounds[-1]}")
    return bounds
