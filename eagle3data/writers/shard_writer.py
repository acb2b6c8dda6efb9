"""Write one shard: objects first, each created exclusively, the index part last."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.index import INDEX_SCHEMA, rows_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage import layout
from eagle3data.storage.arrays import chunk_codec, fill_of, states_dtype
from eagle3data.storage.root import Root
from eagle3data.storage.shard import encode_shard
from eagle3data.writers.statistics import LayerStatistics, check_statistics, layer_statistics


@dataclass(frozen=True)
class _Held:
    sample: Sample
    token_offset: int
    statistics: dict[int, LayerStatistics]


class ShardWriter:
    """Collects a shard's samples in memory and commits them in one step.

    Samples may come in any order; their bytes lie in token order. Nothing is visible to a
    reader before `commit` has created the index part.
    """

    def __init__(self, root: Root, manifest: Manifest, shard: int) -> None:
        self._root = root
        self._manifest = manifest
        self._axis = manifest.storage.axis
        self._held: list[_Held] = []
        self.shard = shard

    def __len__(self) -> int:
        return len(self._held)

    def append(self, sample: Sample, token_offset: int) -> None:
        """Check a sample and keep it for the commit.

        Args:
            sample: its arrays are referenced, not copied, until the commit.
            token_offset: where the plan put it, on a chunk boundary of this shard.

        Raises:
            SampleError: its arrays disagree, or its states are not finite or all zero.
        """
        manifest = self._manifest
        sample.check(manifest.layers, manifest.hidden_size, manifest.target.vocab_size)
        statistics = {
            layer: layer_statistics(states) for layer, states in sample.hidden_states.items()
        }
        check_statistics(sample, statistics)
        self._held.append(_Held(sample, token_offset, statistics))

    def commit(self) -> None:
        """Write every array's object, check what arrived, then create the index part.

        Leftovers of an earlier attempt at this shard are removed first: without an index
        part they belong to nobody.

        Raises:
            AlreadyExistsError: another writer committed this shard meanwhile.
            SpaceError, InputError: the place is full or can't be written.
        """
        self._held.sort(key=lambda held: held.token_offset)
        remove_orphans(self._root, self._manifest, self.shard)
        objects = [self._write_object(array) for array in layout.array_names(self._manifest)]
        for entry in objects:
            size = self._root.size(str(entry["path"]))
            if size != entry["bytes"]:
                raise CorruptionError(
                    "object_truncated",
                    f"{entry['path']} has {size} bytes right after {entry['bytes']} were written",
                    url=self._root.url,
                    shard=self.shard,
                )
        table = self._index_table()
        facts = {"shard": self.shard, "objects": objects, "rows": rows_digest(table), **_writing()}
        part = layout.encode_table(table, facts)
        self._root.create(layout.index_part(self.shard), [part])

    def _write_object(self, array: str) -> dict[str, Any]:
        codec = chunk_codec(self._manifest, array)
        encoded = encode_shard(codec, self._chunks(array, codec.shape, codec.dtype))
        name = layout.shard_object(array, self.shard)
        self._root.create(name, encoded.parts)
        return {
            "path": name,
            "bytes": encoded.nbytes,
            "crc32c": encoded.object_crc32c,
            "chunks_crc32c": encoded.chunks_crc32c,
        }

    def _chunks(
        self, array: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> list[npt.NDArray[Any] | None]:
        chunks: list[npt.NDArray[Any] | None] = [None] * self._axis.chunks_per_shard
        values = _values_of(array)
        for held in self._held:
            rows = np.ascontiguousarray(values(held.sample), dtype=dtype)
            for position, number in enumerate(
                self._axis.chunks_of(held.token_offset, len(held.sample))
            ):
                piece = rows[position * shape[0] : (position + 1) * shape[0]]
                if len(piece) < shape[0]:
                    whole = np.full(shape, fill_of(self._manifest, array), dtype=dtype)
                    whole[: len(piece)] = piece
                    piece = whole
                chunks[number] = piece
        return chunks

    def _index_table(self) -> pa.Table:
        rows = [_index_row(held) for held in self._held]
        return pa.Table.from_pylist(rows, schema=INDEX_SCHEMA)


def remove_orphans(root: Root, manifest: Manifest, shard: int) -> None:
    """Delete a shard's objects if no index part claims them."""
    if root.exists(layout.index_part(shard)):
        return
    for array in layout.array_names(manifest):
        root.delete(layout.shard_object(array, shard))


def in_storage_dtype(manifest: Manifest, sample: Sample) -> Sample:
    """The sample with its states in the set's storage dtype; float32 and float64 are cast.

    A cast that overflows gives infinities, which `ShardWriter.append` refuses as `saturated`.
    """
    wanted = states_dtype(manifest)
    with np.errstate(over="ignore"):
        sample.hidden_states = {
            layer: states if states.dtype == wanted else _cast(states, wanted)
            for layer, states in sample.hidden_states.items()
        }
    return sample


def _cast(states: npt.NDArray[Any], wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    if states.dtype == np.uint16:
        states = (states.astype(np.uint32) << 16).view(np.float32)
    if wanted == np.uint16:
        # Round to nearest even, as hardware does; NaN keeps a set quiet bit.
        bits = np.ascontiguousarray(states, dtype=np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(states), np.uint16(0x7FC0), rounded)
    return states.astype(wanted)


def _values_of(array: str) -> Callable[[Sample], npt.NDArray[Any]]:
    if array == layout.INPUT_IDS:
        return lambda sample: sample.input_ids
    if array == layout.LOSS_MASK:
        return lambda sample: sample.loss_mask
    layer = int(array.rsplit("/", 1)[1])
    return lambda sample: sample.hidden_states[layer]


def _index_row(held: _Held) -> dict[str, Any]:
    sample = held.sample
    layers = [asdict(statistics) for statistics in held.statistics.values()]
    return {
        "sample_id": sample.sample_id,
        "token_offset": held.token_offset,
        "length": len(sample),
        "input_ids": sample.input_ids,
        "loss_mask": sample.loss_mask.astype(bool),
        "n_loss_tokens": int(sample.loss_mask.sum()),
        "tokens_crc32c": tokens_crc32c(sample.input_ids),
        "source": sample.source,
        "split": sample.split,
        "source_extra": list(dict(sample.source_extra).items()),
        **{name: [layer[name] for layer in layers] for name in layers[0]},
        "witness_token": sample.witness_token,
        "witness_logprob": sample.witness_logprob,
    }


def _writing() -> dict[str, str]:
    return {
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "eagle3data": version("eagle3data"),
    }
