"""`Dataset`: samples by position or id, read and checked. No torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from eagle3data.readers.index import Index, read_index, read_index_of
from eagle3data.readers.sample_cache import ChunkReader, SampleCache
from eagle3data.readers.stated import Stated
from eagle3data.schema.digest import json_digest
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.index import list_values
from eagle3data.schema.manifest import Codec
from eagle3data.schema.sample import Sample
from eagle3data.schema.statistics import LayerStatistics
from eagle3data.storage import layout
from eagle3data.storage.arrays import chunk_codec, states_dtype
from eagle3data.storage.cache_folder import CacheFolder
from eagle3data.storage.parallel import run_all
from eagle3data.storage.root import Root
from eagle3data.storage.shard_decoder import ShardDecoder

_OPEN_SHARDS = 384
"""Shards kept open; each is a map and a descriptor, of which a process often has 1,024."""
_LEAST_PIECE_BYTES = 4 << 20
"""Less is not worth a thread's start, or a request."""


class Dataset:
    """A data set opened for reading.

    Attributes:
        url: its root.
        manifest: what it is.
        index: one row a sample that is committed and not hidden (`INDEX_SCHEMA`), in token order.
        generation: digest of rows and tombstones; what a loader's state refers to.
        hidden: committed samples that tombstones hide.
        offsets: `[samples]`, each one's first token on the token axis.
        lengths: `[samples]`, tokens of each.
        stated: what the index says of many samples at once.
        threads: that share the reading of one sample.
        shard_reader: `(array, shard)` to its opened `ShardDecoder`; the latest are kept.
        cache: the part of it that is kept on a local disk; None without one.
    """

    def __init__(
        self,
        root: Root,
        *,
        threads: int | None = None,
        cache: str | Path | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Read manifest and index; use `open_dataset`."""
        threads = root.threads if threads is None else threads
        if not isinstance(threads, int) or threads < 1:
            raise InputError(f"threads is {threads!r}; expected a whole number from 1.")
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "eagle3data-read") if threads > 1 else None
        self.root = root
        self.url = root.url
        self.manifest = layout.read_manifest(root)
        self._axis = self.manifest.storage.axis
        self._show(read_index(root))
        self.shard_reader = lru_cache(maxsize=_OPEN_SHARDS)(self._open_shard)
        self.cache = self._open_cache(cache, cache_bytes)

    def _show(self, found: Index) -> None:
        self.index, self.generation, self.hidden = found.rows, found.generation, found.hidden
        self.offsets: npt.NDArray[np.int64] = self.index["token_offset"].to_numpy()
        self.lengths: npt.NDArray[np.int32] = self.index["length"].to_numpy()
        self.stated = Stated(self.index)

    def of_shards(self, groups: Sequence[Sequence[int]]) -> list[Dataset]:
        """The set as if only some shards were committed, once for each group; read anew.

        They have no cache: what one holds is of samples of the whole set.

        Args:
            groups: shards of each; they may have been committed since this was opened.

        Raises:
            CorruptionError: an index part that is gone or can't be read.
        """
        parts = []
        for found in read_index_of(self.root, groups):
            part = copy.copy(self)
            part._show(found)
            part.cache = None
            parts.append(part)
        return parts

    def __repr__(self) -> str:
        return f"<Dataset {self.url}: {len(self)} samples, {self.tokens} tokens>"

    def __len__(self) -> int:
        return self.index.num_rows

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return int(self.lengths.sum())

    def __getitem__(self, position: int) -> Sample:
        if not isinstance(position, int | np.integer):
            raise TypeError(f"a position is an integer, not {position!r}; use get(sample_id)")
        return self.read(int(position))

    def __iter__(self) -> Iterator[Sample]:
        return (self.read(position) for position in range(len(self)))

    def get(self, sample_id: str) -> Sample:
        """The sample of that id.

        Raises:
            KeyError: there is none.
        """
        return self.read(self.position(sample_id))

    def position(self, sample_id: str) -> int:
        """Position of a sample in the index.

        Raises:
            KeyError: there is none of that id.
        """
        found = pc.index(self.index["sample_id"], sample_id).as_py()
        if found < 0:
            raise KeyError(f"{self.url} has no sample {sample_id!r}")
        return int(found)

    def read(
        self, position: int, layers: Sequence[int] | None = None, *, verify: bool = True
    ) -> Sample:
        """Read one sample.

        Args:
            position: row of the index; negative counts from the end.
            layers: canonical ids to read; all by default.
            verify: compare every chunk's checksum.

        Returns:
            The sample, its states `[T, H]` as stored (float16, or uint16 bits of bfloat16).

        Raises:
            IndexError: no such row.
            InputError: a layer that was not captured.
            CorruptionError: bytes that are not what was written, or another sample's tokens.
        """
        if not -len(self) <= position < len(self):
            raise IndexError(f"sample {position} of {len(self)} in {self.url}")
        position %= len(self)
        wanted = self.manifest.layers if layers is None else list(layers)
        missing = sorted(set(wanted) - set(self.manifest.layers))
        if missing:
            raise InputError(f"{self.url} has layers {self.manifest.layers}, not {missing}.")
        states = np.empty(
            (len(wanted), int(self.lengths[position]), self.manifest.hidden_size),
            dtype=states_dtype(self.manifest),
        )
        ids, mask = self.read_tokens(position, verify=verify)
        self.read_into(position, states, wanted, verify=verify)
        return Sample(
            hidden_states=dict(zip(wanted, states, strict=True)),
            input_ids=ids,
            loss_mask=mask,
            sample_id=self.sample_id(position),
            source=self.index["source"][position].as_py(),
            split=self.index["split"][position].as_py(),
            source_extra=dict(self.index["source_extra"][position].as_py() or {}),
            witness_token=self.index["witness_token"][position].as_py(),
            witness_logprob=self.index["witness_logprob"][position].as_py(),
        )

    def read_into(
        self,
        position: int,
        out: npt.NDArray[Any],
        layers: Sequence[int] | None = None,
        *,
        verify: bool = True,
    ) -> None:
        """Read one sample's states straight into a buffer.

        Args:
            position: row of the index.
            out: `[layers, length, hidden]` of the stored dtype, contiguous from row to row.
            layers: canonical ids, in the order of `out`; all by default.
            verify: compare every chunk's checksum.

        Raises:
            CorruptionError: a missing or damaged object or chunk; `out` then means nothing.
        """
        wanted = self.manifest.layers if layers is None else layers
        reads: list[Callable[[], None]] = []
        for rows, layer in zip(out, wanted, strict=True):
            array = layout.states_array(layer)
            reads += self._pieces(array, position, rows, out.nbytes, verify=verify)
        self._run(reads)

    def read_array(
        self,
        array: str,
        position: int,
        out: npt.NDArray[Any] | None = None,
        *,
        verify: bool = True,
    ) -> npt.NDArray[Any]:
        """One array's rows of one sample.

        Args:
            array: a name as in `layout.array_names`.
            position: row of the index.
            out: contiguous `[length, ...]` of the stored dtype to fill; a new one by default.
            verify: compare every chunk's checksum.

        Raises:
            CorruptionError: a missing or damaged object or chunk; `out` then means nothing.
        """
        if out is None:
            codec = chunk_codec(self.manifest, array)
            out = np.empty((int(self.lengths[position]), *codec.shape[1:]), dtype=codec.dtype)
        self._run(self._pieces(array, position, out, out.nbytes, verify=verify))
        return out

    def read_here(
        self, array: str, position: int, out: npt.NDArray[Any], *, verify: bool = True
    ) -> None:
        """As `read_array` into `out`, but all in the calling thread, for callers with many."""
        for piece in self._pieces(array, position, out, out.nbytes, verify=verify):
            piece()

    def read_rows_here(
        self, array: str, position: int, first: int, out: npt.NDArray[Any], *, verify: bool = True
    ) -> None:
        """Rows `first`, `first + 1`, ... of a sample into `out`, in the calling thread.

        Args:
            array: a name as in `layout.array_names`.
            position: row of the index.
            first: the first row to read, counted in the sample.
            out: contiguous `[rows, ...]` of the stored dtype; rows that the sample has.
            verify: compare the checksum of every chunk that holds one of the rows.

        Raises:
            CorruptionError: a missing or damaged object or chunk; `out` then means nothing.
        """
        length = int(self.lengths[position])
        if not 0 <= first < first + len(out) <= length:
            raise InputError(
                f"sample {self.sample_id(position)} has {length} rows; rows {first} to "
                f"{first + len(out) - 1} were asked for."
            )
        if len(out) == length:
            self.read_here(array, position, out, verify=verify)
            return
        offset, sample_id = int(self.offsets[position]), self.sample_id(position)
        chunks = self._axis.chunks_of(offset, length)
        reader = self._reader(array, position)
        number, before = divmod(first, self._axis.chunk_tokens)
        if before:
            # The chunk that the first row is in the middle of is read to its end, elsewhere.
            rows = min(self._axis.chunk_tokens, before + len(out))
            whole = np.empty((rows, *out.shape[1:]), out.dtype)
            reader.read(chunks[number : number + 1], whole, sample_id, verify=verify)
            out[: rows - before] = whole[before:]
            out, number = out[rows - before :], number + 1
        wanted = chunks[number : number - (-len(out) // self._axis.chunk_tokens)]
        if len(wanted):
            reader.will_read(wanted)
            reader.read(wanted, out, sample_id, verify=verify)

    @property
    def can_gather(self) -> bool:
        """Whether samples can be read together: uncompressed, on a local disk, without a cache."""
        plain = self.manifest.storage.codec is Codec.NONE
        return plain and self.root.is_local and self.cache is None

    def _pieces(
        self, array: str, position: int, out: npt.NDArray[Any], total: int, *, verify: bool
    ) -> list[Callable[[], None]]:
        """The reads that fill `out`, each of some adjacent chunks, to be done in any order.

        `total` is what all reads that are done together take: two pieces for each thread share
        the work evenly, and fewer are larger.
        """
        length, offset = int(self.lengths[position]), int(self.offsets[position])
        sample_id = self.sample_id(position)
        chunks = self._axis.chunks_of(offset, length)
        if length < 1 or chunks.stop > self._axis.chunks_per_shard:
            raise CorruptionError(
                "length_mismatch",
                f"the index gives the sample {length} tokens at {offset}, which no shard of "
                f"{self._axis.shard_tokens} tokens holds",
                url=self.url,
                array=array,
                sample_id=sample_id,
            )
        if out.shape[0] != length or not out.flags.c_contiguous:
            raise InputError(
                f"sample {sample_id} has {length} rows; the buffer given for {array} has shape "
                f"{out.shape} and must be contiguous."
            )
        reader = self._reader(array, position)
        reader.will_read(chunks)
        rows = self._axis.chunk_tokens
        piece = max(_LEAST_PIECE_BYTES, total // (2 * self.threads))
        # A copy in the cache is of a whole sample, and fetched in one go.
        step = max(1, piece * len(chunks) // out.nbytes) if self.cache is None else len(chunks)
        return [
            partial(
                reader.read,
                chunks[first : first + step],
                out[first * rows : (first + step) * rows],
                sample_id,
                verify=verify,
            )
            for first in range(0, len(chunks), step)
        ]

    def _reader(self, array: str, position: int) -> ChunkReader:
        if self.cache is None:
            return self.shard_reader(array, self.shard_of(position))
        return self.cache.reader(array, position)

    def _run(self, pieces: Sequence[Callable[[], None]]) -> None:
        if self._pool is None or len(pieces) == 1:
            for piece in pieces:
                piece()
            return
        run_all(self._pool, pieces)

    def shard_of(self, position: int) -> int:
        """The shard that holds a sample."""
        return self._axis.shard_of(int(self.offsets[position]))

    def length(self, position: int) -> int:
        """Tokens of a sample."""
        return int(self.lengths[position])

    def sample_id(self, position: int) -> str:
        """Name of a sample."""
        return self.stated.sample_id(position)

    def read_tokens(
        self, position: int, *, verify: bool = True
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Token ids `[T]` int32 and loss mask `[T]` uint8 of a sample, equal to the index's.

        Raises:
            CorruptionError: the shard and the index disagree (`tokens_differ`), or damage.
        """
        ids = self.read_array(layout.INPUT_IDS, position, verify=verify)
        mask = self.read_array(layout.LOSS_MASK, position, verify=verify)
        for name, stored in (("input_ids", ids), ("loss_mask", mask)):
            if not np.array_equal(stored, list_values(self.index[name], position)):
                raise CorruptionError(
                    "tokens_differ",
                    f"the shard's {name} are not those of the index",
                    url=self.url,
                    array=name,
                    shard=self.shard_of(position),
                    sample_id=self.sample_id(position),
                )
        return ids, mask

    def stated_statistics(self, position: int, layer: int) -> LayerStatistics | None:
        """What the index says of a layer of a sample; None where it is not one value a layer."""
        column = self.manifest.layers.index(layer)
        values = {}
        for name in LayerStatistics.__dataclass_fields__:
            row = self.index[name][position].as_py()
            if len(row) != len(self.manifest.layers):
                return None
            values[name] = row[column]
        return LayerStatistics(**values)

    def _open_shard(self, array: str, shard: int) -> ShardDecoder:
        return ShardDecoder(
            self.root,
            chunk_codec(self.manifest, array),
            array=array,
            shard=shard,
            name=layout.shard_object(array, shard),
            chunks=self._axis.chunks_per_shard,
        )

    def _open_cache(self, place: str | Path | None, limit: int | None) -> SampleCache | None:
        if (place is None) != (limit is None):
            raise InputError("give both cache and cache_bytes, or neither.")
        if place is None or limit is None:
            return None
        if limit < 0:
            raise InputError(f"cache_bytes is {limit}; expected a number of bytes.")
        # Sets that were made alike have one identity; each is told apart by where it lies.
        name = json_digest([self.url, self.manifest.identity]).rpartition(":")[2][:16]
        generation = self.generation.rpartition(":")[2][:16]
        return SampleCache(
            CacheFolder(place, limit, set_name=name, generation=generation),
            self.manifest,
            self.offsets,
            self.lengths,
            generation=generation,
            shard_reader=self.shard_reader,
        )


def open_dataset(
    url: str,
    *,
    threads: int | None = None,
    cache: str | Path | None = None,
    cache_bytes: int | None = None,
) -> Dataset:
    """Open a data set for reading.

    Args:
        url: a folder or any URL that fsspec opens.
        threads: that share the reading of one sample; by default the cores, at most 4, on a
            local disk and 16 requests at a time elsewhere.
        cache: folder on a local disk in which a fixed part of the samples is kept once it was
            read; processes, and data sets, may share one.
        cache_bytes: the most that all copies in that folder may take together.

    Raises:
        InputError: no data set there, or a cache folder that can't be used.
        ManifestError: another format, or a newer version than this package reads.
        CorruptionError: an index part that can't be read.
    """
    return Dataset(Root(url), threads=threads, cache=cache, cache_bytes=cache_bytes)
