"""`Dataset`: samples by position or id, read and checked. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eagle3data.schema.digest import sequence_digest
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.index import INDEX_SCHEMA, check_schema, list_values
from eagle3data.schema.sample import Sample
from eagle3data.storage import layout
from eagle3data.storage.arrays import chunk_codec
from eagle3data.storage.root import Root
from eagle3data.storage.shard import ShardReader

_OPEN_SHARDS = 1024
"""Shard indexes kept; one is a few kilobytes."""


class Dataset:
    """A data set opened for reading.

    Attributes:
        url: its root.
        manifest: what it is.
        index: one row a committed sample (`INDEX_SCHEMA`), in token order.
        generation: digest of the rows; what a loader's state refers to.
        shard_reader: `(array, shard)` to its opened `ShardReader`; the latest are kept.
    """

    def __init__(self, root: Root) -> None:
        """Read manifest and index; use `open_dataset`."""
        self.root = root
        self.url = root.url
        self.manifest = layout.read_manifest(root)
        self.index, parts = read_index(root)
        self.generation = sequence_digest(
            f"{shard}:{rows}" for shard, rows in sorted(parts.items())
        )
        self._axis = self.manifest.storage.axis
        self._offsets: npt.NDArray[np.int64] = self.index["token_offset"].to_numpy()
        self._lengths: npt.NDArray[np.int32] = self.index["length"].to_numpy()
        self.shard_reader = lru_cache(maxsize=_OPEN_SHARDS)(self._open_shard)

    def __repr__(self) -> str:
        return f"<Dataset {self.url}: {len(self)} samples, {self.tokens} tokens>"

    def __len__(self) -> int:
        return self.index.num_rows

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return int(self._lengths.sum())

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
        sample_id = str(self.index["sample_id"][position].as_py())
        ids, mask = self.read_tokens(position, verify=verify)
        return Sample(
            hidden_states={
                layer: self.read_array(layout.states_array(layer), position, verify=verify)
                for layer in wanted
            },
            input_ids=ids,
            loss_mask=mask,
            sample_id=sample_id,
            source=self.index["source"][position].as_py(),
            split=self.index["split"][position].as_py(),
            source_extra=dict(self.index["source_extra"][position].as_py() or {}),
            witness_token=self.index["witness_token"][position].as_py(),
            witness_logprob=self.index["witness_logprob"][position].as_py(),
        )

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

        Raises:
            CorruptionError: a missing or damaged object or chunk.
        """
        codec = chunk_codec(self.manifest, array)
        length, offset = int(self._lengths[position]), int(self._offsets[position])
        if out is None:
            out = np.empty((length, *codec.shape[1:]), dtype=codec.dtype)
        sample_id = str(self.index["sample_id"][position].as_py())
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
        reader = self.shard_reader(array, self._axis.shard_of(offset))
        reader.read(chunks, out, sample_id, verify=verify)
        return out

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
                    shard=self._axis.shard_of(int(self._offsets[position])),
                    sample_id=str(self.index["sample_id"][position].as_py()),
                )
        return ids, mask

    def _open_shard(self, array: str, shard: int) -> ShardReader:
        return ShardReader(
            self.root,
            chunk_codec(self.manifest, array),
            array=array,
            shard=shard,
            name=layout.shard_object(array, shard),
            chunks=self._axis.chunks_per_shard,
        )


def read_index(root: Root) -> tuple[pa.Table, dict[int, str]]:
    """All committed rows in token order, and each part's digest.

    Reads `index/all.arrow` and whatever parts it doesn't hold yet.

    Raises:
        CorruptionError: a part that is truncated or not an Arrow file.
    """
    committed = layout.committed_shards(root)
    tables: list[pa.Table] = []
    parts: dict[int, str] = {}
    gathered = layout.read_gathered(root)
    if gathered is not None and set(gathered[1]) <= set(committed):
        tables.append(_checked(gathered[0], root, layout.ALL_PARTS))
        parts.update(gathered[1])
    for shard in committed:
        if shard in parts:
            continue
        name = layout.index_part(shard)
        table, facts = layout.read_table(root, name)
        tables.append(_checked(table, root, name))
        parts[shard] = str(facts.get("rows"))
    combined = pa.concat_tables([INDEX_SCHEMA.empty_table(), *tables])
    return combined.sort_by("token_offset").combine_chunks(), parts


def _checked(table: pa.Table, root: Root, name: str) -> pa.Table:
    check_schema(table.schema, INDEX_SCHEMA, f"{root.url}/{name}")
    return table.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA)


def open_dataset(url: str) -> Dataset:
    """Open a data set for reading.

    Args:
        url: a folder or any URL that fsspec opens.

    Raises:
        InputError: no data set there.
        ManifestError: another format, or a newer version than this package reads.
        CorruptionError: an index part that can't be read.
    """
    return Dataset(Root(url))
