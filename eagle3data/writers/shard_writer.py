"""Write one shard: objects first, each created exclusively, the index part last."""

from __future__ import annotations

import datetime
import os
import platform
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.errors import (
    AlreadyExistsError,
    CorruptionError,
    LostClaimError,
    SampleError,
    SpaceError,
)
from eagle3data.schema.index import INDEX_SCHEMA, rows_digest
from eagle3data.schema.manifest import Codec, Manifest
from eagle3data.schema.sample import Sample
from eagle3data.schema.statistics import LayerStatistics, check_statistics, layer_statistics
from eagle3data.storage import layout
from eagle3data.storage.arrays import chunk_codec, fill_of
from eagle3data.storage.claims import Claim
from eagle3data.storage.codecs import ChunkCodec, EncodedChunk
from eagle3data.storage.root import Root, Upload
from eagle3data.storage.shard_encoder import ShardEncoder
from eagle3data.writers.data_set import drop_part

_MAX_THREADS = 16
_RESERVE_BYTES = 64_000_000
_RESERVE_SHARE = 0.01
"""Writing stops while so much of the disk is still free: others write there too."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(kw_only=True)
class _ArrayObject:
    """One array's object on its way to the store."""

    array: str
    name: str
    codec: ChunkCodec
    encoder: ShardEncoder
    upload: Upload
    identity: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, chunks: Iterable[tuple[int, Callable[[], EncodedChunk]]]) -> None:
        """Append a sample's chunks, in the order given and beside each other.

        They are encoded before the object is held: other samples' writers wait for it.
        """
        encoded = [(number, encode()) for number, encode in chunks]
        with self.lock:
            self.upload.write(
                [part for number, chunk in encoded for part in self.encoder.add(number, chunk)]
            )

    def commit(self) -> None:
        """Give the finished object its name."""
        self.identity = self.upload.commit()

    @property
    def facts(self) -> dict[str, Any]:
        """What the index part records of it."""
        return {
            "path": self.name,
            "bytes": self.encoder.nbytes,
            "crc32c": self.encoder.object_crc32c,
            "chunks_crc32c": self.encoder.chunks_crc32c,
        }


class ShardWriter:
    """Writes a shard's samples as they come, and makes them visible in one step.

    Samples may come in any order, and from several threads at once. They are checked, encoded and
    written when they come, so memory is bounded however large the shard is. Nothing is visible to
    a reader before `commit` has created the index part. Use `abort` to drop what was written.
    """

    def __init__(
        self,
        root: Root,
        manifest: Manifest,
        shard: int,
        claim: Claim,
        *,
        threads: int | None = None,
    ) -> None:
        """Begin a shard; nothing is created before the first sample.

        Args:
            root: of the data set.
            manifest: its manifest.
            shard: number of the shard.
            claim: on the shard; the caller releases it.
            threads: that share the work on one sample; by default the cores, at most 16.
        """
        self._root = root
        self._manifest = manifest
        self._axis = manifest.storage.axis
        self._claim = claim
        self._rows: list[dict[str, Any]] = []
        self._taken: set[int] = set()
        self._objects: list[_ArrayObject] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(
            threads or min(_MAX_THREADS, os.cpu_count() or 1), "eagle3data-write"
        )
        self.shard = shard

    def __len__(self) -> int:
        return len(self._rows)

    def append(
        self,
        sample: Sample,
        token_offset: int,
        *,
        statistics: Mapping[int, LayerStatistics] | None = None,
        check: Callable[[dict[int, LayerStatistics]], None] | None = None,
    ) -> None:
        """Check a sample and write its chunks.

        Args:
            sample: not referenced any more when this returns.
            token_offset: where the plan put it, on a chunk boundary of this shard.
            statistics: of its layers, where whoever made the states found them already; the
                others are found here.
            check: called with the statistics of the sample's layers before anything is
                written; what it raises refuses the sample.

        Raises:
            SampleError: its arrays disagree, or its states are not finite or all zero; nothing
                of it was written.
            SpaceError, InputError: the place is full or can't be written.
        """
        manifest = self._manifest
        sample.check(manifest.layers, manifest.hidden_size, manifest.target.vocab_size)
        found = self._statistics(sample, statistics or {})
        check_statistics(sample, found)
        if check is not None:
            check(found)
        self._require_room(sample)
        with self._lock:
            self._place(sample, token_offset)
            if not self._objects:
                self._begin()
        writes = [(target, self._chunks(target, sample, token_offset)) for target in self._objects]
        self._each(lambda write: write[0].write(write[1]), writes)
        self._rows.append(_index_row(sample, token_offset, found))

    def commit(self) -> None:
        """Finish every object, give it its name, check that it is there, then create the part.

        Leftovers of an earlier attempt at this shard are removed first: without an index part
        they belong to nobody.

        Raises:
            AlreadyExistsError: another writer committed this shard, or is about to.
            LostClaimError: another process has taken the shard over.
            SpaceError, InputError: the place is full or can't be written.
        """
        try:
            if not self._objects:
                self._begin()
            self._each(lambda target: target.upload.write(target.encoder.finish()), self._objects)
            remove_orphans(self._root, self._manifest, self.shard, self._claim)
            self._each(_ArrayObject.commit, self._objects)
            self._require_own_objects()
            require_claim(self._root, self._claim)
            self._create_part()
            self._require_no_mix()
        except BaseException:
            self._withdraw()
            raise
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop what was not committed and end the threads; may be called twice."""
        for target in self._objects:
            target.upload.abort()
        self._pool.shutdown()

    def _statistics(
        self, sample: Sample, known: Mapping[int, LayerStatistics]
    ) -> dict[int, LayerStatistics]:
        unknown = [layer for layer in sample.hidden_states if layer not in known]
        made = self._each(layer_statistics, [sample.hidden_states[layer] for layer in unknown])
        found = {**known, **dict(zip(unknown, made, strict=True))}
        return {layer: found[layer] for layer in sample.hidden_states}

    def _each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return list(self._pool.map(work, items))

    def _begin(self) -> None:
        for array in layout.array_names(self._manifest):
            name = layout.shard_object(array, self.shard)
            self._objects.append(
                _ArrayObject(
                    array=array,
                    name=name,
                    codec=chunk_codec(self._manifest, array),
                    encoder=ShardEncoder(self._axis.chunks_per_shard),
                    upload=self._root.begin(name),
                )
            )

    def _require_room(self, sample: Sample) -> None:
        room = self._root.room()
        if room is None:
            return
        free, total = room
        reserve = reserved_bytes(total)
        needed = sum(states.nbytes for states in sample.hidden_states.values())
        if free - needed < reserve:
            raise SpaceError(
                f"{self._root.url} has {free / 1e6:,.0f} MB free; sample {sample.sample_id} takes "
                f"{needed / 1e6:,.0f} MB and {reserve / 1e6:,.0f} MB are left to others. What is "
                "committed stays whole: free some space, and run the same command again to "
                "continue."
            )

    def _place(self, sample: Sample, token_offset: int) -> None:
        chunks = self._axis.chunks_of(token_offset, len(sample))
        outside = (
            token_offset % self._axis.chunk_tokens
            or self._axis.shard_of(token_offset) != self.shard
            or chunks.stop > self._axis.chunks_per_shard
        )
        if outside or self._taken.intersection(chunks):
            raise SampleError(
                "offset_overlap",
                sample.sample_id,
                f"{len(sample)} tokens at {token_offset} "
                f"{'do not fit' if outside else 'lie on another sample'} in shard {self.shard}.",
            )
        self._taken.update(chunks)

    def _chunks(
        self, target: _ArrayObject, sample: Sample, token_offset: int
    ) -> list[tuple[int, Callable[[], EncodedChunk]]]:
        """Chunk numbers of a sample, each with what gives its encoded chunk."""
        shape, dtype = target.codec.shape, target.codec.dtype
        rows = np.ascontiguousarray(_values(target.array, sample), dtype=dtype)
        chunks = []
        for position, number in enumerate(self._axis.chunks_of(token_offset, len(sample))):
            piece = rows[position * shape[0] : (position + 1) * shape[0]]
            if len(piece) < shape[0]:
                whole = np.full(shape, fill_of(self._manifest, target.array), dtype=dtype)
                whole[: len(piece)] = piece
                piece = whole
            chunks.append((number, self._encoding(target.codec, piece)))
        return chunks

    def _encoding(self, codec: ChunkCodec, rows: npt.NDArray[Any]) -> Callable[[], EncodedChunk]:
        """Compression begins now, on all threads; a mere checksum is left to who writes it."""
        if codec.profile is Codec.NONE:
            return partial(codec.encode, rows)
        # The pool takes work in order, so no write can wait for a chunk that is behind it.
        return self._pool.submit(codec.encode, rows).result

    def _require_own_objects(self) -> None:
        for target in self._objects:
            if self._root.identity(target.name) != target.identity:
                raise LostClaimError(
                    f"{self._root.url}/{target.name} is not what this process wrote a moment ago: "
                    "another one works on the same shard. Nothing was committed here."
                )
            size = self._root.size(target.name)
            if size != target.encoder.nbytes:
                raise CorruptionError(
                    "object_truncated",
                    f"{target.name} has {size} bytes right after {target.encoder.nbytes} were "
                    "written",
                    url=self._root.url,
                    shard=self.shard,
                )

    def _create_part(self) -> None:
        self._rows.sort(key=lambda row: row["token_offset"])
        table = pa.Table.from_pylist(self._rows, schema=INDEX_SCHEMA)
        objects = [target.facts for target in self._objects]
        facts = {"shard": self.shard, "objects": objects, "rows": rows_digest(table), **_writing()}
        part = layout.encode_table(table, facts)
        name = layout.index_part(self.shard)
        try:
            self._root.create(name, [part])
        except AlreadyExistsError:
            # A writer that was taken for dead can have committed between its last look and now,
            # after its objects had been replaced by ours. Its part then describes no object.
            if self._is_part_of(objects):
                raise
            require_claim(self._root, self._claim)
            self._require_own_objects()
            drop_part(self._root, self.shard)
            self._root.create(name, [part])

    def _require_no_mix(self) -> None:
        """Look once more, now that the part is there and nobody removes objects any more.

        Raises:
            LostClaimError: another process replaced an object just before; the part, which
                would describe what is not there, was taken back.
        """
        try:
            self._require_own_objects()
        except (LostClaimError, CorruptionError):
            # The other may have put its own part in the place of this one already.
            if self._is_part_of([target.facts for target in self._objects]):
                drop_part(self._root, self.shard)
            raise

    def _is_part_of(self, objects: list[dict[str, Any]]) -> bool:
        """Whether the shard's index part is there and describes these objects."""
        try:
            _, there = layout.read_table(self._root, layout.index_part(self.shard))
        except CorruptionError:
            return False
        return there.get("objects") == objects

    def _withdraw(self) -> None:
        """Remove what of this attempt has got its name already."""
        if self._root.exists(layout.index_part(self.shard)):
            return
        for target in self._objects:
            if target.identity and self._root.identity(target.name) == target.identity:
                self._root.delete(target.name)


def reserved_bytes(total: int) -> int:
    """What a disk of so many bytes keeps free: writing stops there."""
    return min(_RESERVE_BYTES, round(total * _RESERVE_SHARE))


def remove_orphans(root: Root, manifest: Manifest, shard: int, claim: Claim) -> None:
    """Delete the objects of a shard that has no index part.

    Raises:
        AlreadyExistsError: there is an index part.
        LostClaimError: another process has taken the shard over.
    """
    for array in layout.array_names(manifest):
        name = layout.shard_object(array, shard)
        if not root.exists(name):
            continue
        # For each object anew: a process that was stopped for minutes goes on right here.
        require_claim(root, claim)
        if root.exists(layout.index_part(shard)):
            raise AlreadyExistsError(f"shard {shard} of {root.url} is committed already.")
        root.delete(name)


def require_claim(root: Root, claim: Claim) -> None:
    """Go on only while a claim is held.

    Raises:
        LostClaimError: another process has taken over what was claimed.
    """
    if not claim.is_held():
        raise LostClaimError(
            f"shard {claim.name} of {root.url} was taken over by another process, since this one "
            "had shown no sign of life. Nothing was damaged, and nothing is to do."
        )


def _values(array: str, sample: Sample) -> npt.NDArray[Any]:
    if array == layout.INPUT_IDS:
        return np.asarray(sample.input_ids)
    if array == layout.LOSS_MASK:
        return np.asarray(sample.loss_mask)
    return np.asarray(sample.hidden_states[int(array.rsplit("/", 1)[1])])


def _index_row(
    sample: Sample, token_offset: int, statistics: dict[int, LayerStatistics]
) -> dict[str, Any]:
    layers = [asdict(found) for found in statistics.values()]
    return {
        "sample_id": sample.sample_id,
        "token_offset": token_offset,
        "length": len(sample),
        # Copies: the rows wait for the commit, the caller's buffers do not.
        "input_ids": sample.input_ids.copy(),
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


def _writing() -> dict[str, str | int]:
    """When and by whom; how fast an extraction is, and with how many workers, is told by these."""
    return {
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "host": platform.node(),
        "process": os.getpid(),
        "eagle3data": version("eagle3data"),
    }
