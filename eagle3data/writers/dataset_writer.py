"""`DatasetWriter`: append samples one by one, without a plan made before."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
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
from eagle3data.storage.claims import MANIFEST, Claim, Claims, shard_name
from eagle3data.storage.ledger import record_failure
from eagle3data.storage.root import Root
from eagle3data.writers.casting import in_storage_dtype
from eagle3data.writers.data_set import (
    consolidate_index,
    create_data_set,
    live_sample_ids,
    require_place,
    write_plan,
)
from eagle3data.writers.shard_writer import ShardWriter
from eagle3data.writers.write_queue import WriteQueue


class DatasetWriter:
    """Appends samples to a data set; each full shard is planned and committed at once.

    Use as a context manager. Leaving it normally commits the last, partly filled shard;
    leaving it by an exception drops the shard in hand and keeps what was committed. Several
    processes may append to one set at a time: each claims its shards.

    Attributes:
        manifest: of the set.
        rejected: samples that were refused after `append` had returned (only with a queue);
            the ledger has the reasons.
    """

    def __init__(self, root: Root, manifest: Manifest, queue_bytes: int = 0) -> None:
        """For internal use: call `create` or `resume`."""
        if not isinstance(queue_bytes, int) or queue_bytes < 0:
            raise InputError(f"queue_bytes is {queue_bytes!r}; expected a number of bytes, or 0.")
        self._root = root
        self.manifest = manifest
        self.rejected = 0
        self._axis = manifest.storage.axis
        self._writer: ShardWriter | None = None
        self._ids: set[str] = set()
        with ExitStack() as stack:
            create_data_set(root, manifest, shards=0)
            self._claims = stack.enter_context(Claims(root))
            root.sweep()
            self._ids |= live_sample_ids(root)
            self._queue = WriteQueue(queue_bytes) if queue_bytes else None
            self._stack = stack.pop_all()

    @classmethod
    def create(cls, url: str, manifest: Manifest, *, queue_bytes: int = 0) -> Self:
        """Start a new data set.

        Args:
            url: a folder or any URL that fsspec opens.
            manifest: what the set is.
            queue_bytes: above 0, `append` hands samples to a thread that writes them and
                returns at once, unless so many bytes wait; a sample that then turns out bad is
                counted in `rejected` and has its reason in the ledger.

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
        return cls(root, manifest, queue_bytes)

    @classmethod
    def resume(cls, url: str, *, queue_bytes: int = 0) -> Self:
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
        return cls(root, manifest, queue_bytes)

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
        if self._queue is None:
            self._write(sample)
        else:
            nbytes = sum(states.nbytes for states in sample.hidden_states.values())
            self._queue.submit(partial(self._write_or_record, sample), nbytes)
        self._ids.add(sample.sample_id)

    def _write_or_record(self, sample: Sample) -> None:
        try:
            self._write(sample)
        except SampleError as error:
            self.rejected += 1
            shard = self._writer.shard if self._writer else 0
            record_failure(
                self._root,
                shard=shard,
                sample_id=error.sample_id,
                kind=error.kind,
                reason=str(error),
            )

    def _write(self, sample: Sample) -> None:
        sample = in_storage_dtype(self.manifest, sample)
        room = self._axis.aligned(len(sample))
        if room > self._axis.shard_tokens:
            raise SampleError(
                "too_long",
                sample.sample_id,
                f"it has {len(sample)} tokens; a shard of this set holds "
                f"{self._axis.shard_tokens}. Create the set with a larger axis.",
            )
        if self._writer is not None and self._cursor + room > self._end:
            self._flush(self._writer)
        writer = self._writer or self._open_shard()
        writer.append(sample, self._cursor)
        self._plan.append(
            {
                "sample_id": sample.sample_id,
                "shard": writer.shard,
                "token_offset": self._cursor,
                "length": len(sample),
                "tokens_crc32c": tokens_crc32c(sample.input_ids),
            }
        )
        self._cursor += room

    def _open_shard(self) -> ShardWriter:
        claim = self._claim_shard()
        shard = int(claim.name)
        self._writer = ShardWriter(self._root, self.manifest, shard, claim)
        self._plan: list[dict[str, object]] = []
        self._cursor = shard * self._axis.shard_tokens
        self._end = self._cursor + self._axis.shard_tokens
        return self._writer

    def _claim_shard(self) -> Claim:
        """Claim the first shard that is neither committed nor in another writer's hands."""
        committed = set(layout.committed_shards(self._root))
        shard = -1
        while True:
            shard += 1
            if shard in committed:
                continue
            claim = self._claims.acquire(shard_name(shard))
            if claim is None:
                continue
            # Its last owner may have committed it since the list was read.
            if not self._root.exists(layout.index_part(shard)):
                return claim
            self._claims.release(claim.name)

    def _flush(self, writer: ShardWriter) -> None:
        shard = writer.shard
        table = pa.Table.from_pylist(self._plan, schema=PLAN_SCHEMA)
        digest = plan_digest(self.manifest.identity, table)
        with self._claims.holding(MANIFEST):
            resize_arrays(self._root, self.manifest, shard + 1)
        # A writer killed between plan and commit leaves a segment that nothing refers to; each
        # segment here is one shard, and this shard has no index part.
        self._root.delete(layout.plan_segment(shard))
        write_plan(self._root, shard, table, {"digest": digest, "first_shard": shard, "shards": 1})
        writer.commit()
        self._claims.release(shard_name(shard))
        self._writer = None

    def close(self) -> None:
        """Commit what is in hand, gather the index and let go of the data set."""
        try:
            if self._queue is not None:
                self._queue.drain()
            if self._writer is not None and len(self._writer):
                self._flush(self._writer)
            consolidate_index(self._root)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._queue is not None:
            self._queue.close()
        if self._writer is not None:
            self._writer.abort()
        self._stack.close()
        self._root.sweep()

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
            self._let_go()
