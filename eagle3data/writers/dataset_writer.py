"""`DatasetWriter`: append samples one by one, without a plan made before."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import pyarrow as pa

from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.errors import AlreadyExistsError, InputError, SampleError
from eagle3data.schema.index import PLAN_SCHEMA, plan_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage import layout
from eagle3data.storage.arrays import resize_arrays
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import (
    consolidate_index,
    create_data_set,
    require_place,
    write_plan,
)
from eagle3data.writers.shard_writer import ShardWriter, in_storage_dtype


class DatasetWriter:
    """Appends samples to a data set; each full shard is planned and committed at once.

    Use as a context manager. Leaving it normally commits the last, partly filled shard;
    leaving it by an exception drops the shard in hand and keeps what was committed.
    """

    def __init__(self, root: Root, manifest: Manifest) -> None:
        """For internal use: call `create` or `resume`."""
        self._root = root
        self.manifest = manifest
        self._axis = manifest.storage.axis
        with ExitStack() as stack:
            stack.enter_context(root.writer_lock())
            create_data_set(root, manifest, shards=0)
            self._start()
            self._stack = stack.pop_all()

    @classmethod
    def create(cls, url: str, manifest: Manifest) -> Self:
        """Start a new data set.

        Raises:
            AlreadyExistsError: a data set is there already; use `resume`.
            InputError: the place holds something else or can't be written.
        """
        root = Root(url)
        if root.exists(layout.GROUP):
            raise AlreadyExistsError(
                f"{url} holds a data set already. Continue it with DatasetWriter.resume(url), or "
                "choose another place."
            )
        require_place(root)
        return cls(root, manifest)

    @classmethod
    def resume(cls, url: str) -> Self:
        """Continue a data set that `create` began; what was committed is kept.

        Raises:
            InputError: no data set there, or one that a plan made (`extract` continues those).
        """
        root = Root(url)
        manifest = layout.read_manifest(root)
        if manifest.plan_digest is not None:
            raise InputError(
                f"{url} was planned before it was extracted; continue it with `extract`. "
                "DatasetWriter only adds to sets that it began."
            )
        return cls(root, manifest)

    def _start(self) -> None:
        committed = layout.committed_shards(self._root)
        self._ids: set[str] = set()
        for shard in committed:
            table, _ = layout.read_table(self._root, layout.index_part(shard))
            self._ids.update(map(str, table["sample_id"].to_pylist()))
        self._open_shard(committed[-1] + 1 if committed else 0)

    def _open_shard(self, shard: int) -> None:
        self._writer = ShardWriter(self._root, self.manifest, shard)
        self._plan: list[dict[str, object]] = []
        self._cursor = shard * self._axis.shard_tokens

    def append(self, sample: Sample) -> None:
        """Add a sample; the shard before it is committed when this one doesn't fit any more.

        Raises:
            SampleError: the sample is not fit to be stored; the set goes on without it.
            SpaceError, InputError: the place is full or can't be written.
        """
        if sample.sample_id in self._ids:
            raise SampleError(
                "duplicate_sample", sample.sample_id, "the data set has a sample of this id."
            )
        sample = in_storage_dtype(self.manifest, sample)
        end = (self._writer.shard + 1) * self._axis.shard_tokens
        if self._cursor + self._axis.aligned(len(sample)) > end and len(self._writer):
            self._flush()
        offset = self._axis.place([len(sample)], self._writer.shard)[0]
        if len(self._writer):
            offset = self._cursor
        self._writer.append(sample, offset)
        self._ids.add(sample.sample_id)
        self._plan.append(
            {
                "sample_id": sample.sample_id,
                "shard": self._writer.shard,
                "token_offset": offset,
                "length": len(sample),
                "tokens_crc32c": tokens_crc32c(sample.input_ids),
            }
        )
        self._cursor = offset + self._axis.aligned(len(sample))

    def _flush(self) -> None:
        shard = self._writer.shard
        table = pa.Table.from_pylist(self._plan, schema=PLAN_SCHEMA)
        digest = plan_digest(self.manifest.identity, table)
        self._drop_uncommitted_plan(shard)
        resize_arrays(self._root, self.manifest, shard + 1)
        write_plan(self._root, shard, table, {"digest": digest, "first_shard": shard, "shards": 1})
        self._writer.commit()
        self._open_shard(shard + 1)

    def _drop_uncommitted_plan(self, segment: int) -> None:
        # A writer killed between plan and commit leaves a segment that nothing refers to; each
        # segment here is one shard, and this shard has no index part.
        self._root.delete(layout.plan_segment(segment))

    def close(self) -> None:
        """Commit what is in hand, gather the index and let go of the data set."""
        try:
            if len(self._writer):
                self._flush()
            consolidate_index(self._root)
        finally:
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._stack.close()
