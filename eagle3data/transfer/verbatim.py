"""The copy that is the same data set: same shards, plan and generation, byte for byte.

What comes along: manifest and array metadata, plan, ledger, tombstones, committed shards. What
doesn't: claims, leftovers of killed writers, shards without an index part. Tombstones come
before the shards, so that a sample that is hidden in the source is never visible in the copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from eagle3data.readers.card import NAME as CARD
from eagle3data.readers.card import read_card
from eagle3data.readers.dataset import Dataset
from eagle3data.readers.index import read_index
from eagle3data.schema.errors import (
    AlreadyExistsError,
    LostClaimError,
    MismatchError,
)
from eagle3data.storage import layout
from eagle3data.storage.arrays import resize_arrays
from eagle3data.storage.claims import MANIFEST, Claim, Claims
from eagle3data.storage.parallel import run_all
from eagle3data.storage.root import Root
from eagle3data.transfer.job import CopyReport, OnBytes, Preview, free_bytes, require_space
from eagle3data.transfer.objects import ObjectCopy, ObjectFacts
from eagle3data.transfer.verbatim_source import STATES_GROUP, VerbatimSource
from eagle3data.writers.data_set import consolidate_index, create_once
from eagle3data.writers.shard_writer import remove_orphans
from eagle3data.writers.shared_shards import OnWait, SharedShards


class VerbatimCopy:
    """Makes a data set at another place that is the same to the byte."""

    def __init__(self, source: Dataset, target: Root) -> None:
        """Compare what is at the target with the source; writes nothing.

        Raises:
            MismatchError: the target holds another data set, or a copy of an earlier state of
                this one that can't be continued.
            CorruptionError: an index part of the source that can't be read.
        """
        self._source, self._target = VerbatimSource(source), target
        shards = self._source.shards
        there = layout.committed_shards(target)
        with ThreadPoolExecutor(max(source.root.threads, target.threads)) as pool:
            if target.exists(layout.GROUP):
                self._source.require_same(target, there, pool)
            sizes = dict(zip(shards, pool.map(self._source.shard_bytes, shards), strict=True))
        missing = set(shards) - set(there)
        nbytes = sum(sizes[shard] for shard in missing)
        self.preview = Preview(
            byte_for_byte=True,
            samples=len(source),
            tokens=source.tokens,
            shards=len(shards),
            missing=len(missing),
            nbytes=nbytes,
            work_bytes=nbytes,
            free_bytes=free_bytes(target),
        )

    def run(self, on_bytes: OnBytes, on_wait: OnWait) -> CopyReport:
        """Copy what is missing; see `CopyJob.run`."""
        require_space(self._target, self.preview)
        written = 0
        with Claims(self._target) as claims:
            self._copy_documents(claims)
            self._target.sweep()
            shared = SharedShards(self._target, claims, self._source.shards, on_wait)
            with _Pools(self._source.dataset.root, self._target) as pools:
                for claim in filter(None, shared.take()):
                    written += self._copy_shard(claim, pools, on_bytes)
                    shared.give_back(claim)
            consolidate_index(self._target)
        self._target.sweep()
        found = read_index(self._target)
        return CopyReport(
            samples=found.rows.num_rows,
            tokens=int(found.rows["length"].to_numpy().sum()),
            shards=len(layout.committed_shards(self._target)),
            written=written,
            failed=0,
            generation=found.generation,
        )

    def _copy_documents(self, claims: Claims) -> None:
        """Everything that is not a shard; the group with the manifest first."""
        source, target = self._source, self._target
        create_once(target, layout.GROUP, source.read(layout.GROUP))
        if source.dataset.root.exists(STATES_GROUP):
            create_once(target, STATES_GROUP, source.read(STATES_GROUP))
        tokens = 0
        for array in layout.array_names(source.manifest):
            document = source.array_document(array)
            create_once(target, layout.array_document(array), document)
            tokens = json.loads(document)["shape"][0]
        with claims.holding(MANIFEST):
            # The source may have grown since the copy was begun.
            shards = tokens // source.manifest.storage.shard_tokens
            resize_arrays(target, source.manifest, shards)
        for name in source.plan_segments():
            self._copy_plan(name)
        for name in source.notes():
            create_once(target, name, source.read(name))
        card = read_card(source.dataset)
        if card is not None:
            target.replace(CARD, card.encode())

    def _copy_plan(self, name: str) -> None:
        data = self._source.read(name)
        create_once(self._target, name, data)
        if self._target.read(name) != data:
            raise MismatchError(
                f"{self._target.url}/{name} is not that of {self._source.dataset.url}; it was left "
                "as it is. Choose another place."
            )

    def _copy_shard(self, claim: Claim, pools: _Pools, on_bytes: OnBytes) -> bool:
        """Copy one shard, its index part last; false where another process took it over."""
        shard = int(claim.name)
        part, objects = self._source.shard(shard)
        done: dict[str, str] = {}
        try:
            remove_orphans(self._target, self._source.manifest, shard, claim)
            self._copy_objects(objects, pools, on_bytes, done)
            self._require_own(claim, done)
            self._target.create(layout.index_part(shard), [part])
        except (AlreadyExistsError, LostClaimError):
            # Another process took this one for dead and does the same shard.
            self._withdraw(shard, done)
            return False
        except BaseException:
            self._withdraw(shard, done)
            raise
        return True

    def _copy_objects(
        self,
        objects: Iterable[ObjectFacts],
        pools: _Pools,
        on_bytes: OnBytes,
        done: dict[str, str],
    ) -> None:
        """Copy objects side by side; `done` gets the identity of each that has its name."""

        def copy(facts: ObjectFacts) -> None:
            found = ObjectCopy(self._source.dataset, facts)
            upload = self._target.begin(facts.path)
            try:
                found.write_to(upload, pools.readers, on_bytes)
            except BaseException:
                upload.abort()
                raise
            done[facts.path] = upload.commit()

        run_all(pools.objects, [partial(copy, facts) for facts in objects])

    def _require_own(self, claim: Claim, done: Mapping[str, str]) -> None:
        """Just before the commit: all objects are there, and nobody has taken the shard over."""
        gone = [name for name, own in done.items() if self._target.identity(name) != own]
        if gone or not claim.is_held():
            raise LostClaimError(
                f"shard {claim.name} of {self._target.url} was taken over by another process. "
                "Nothing was damaged, and nothing is to do."
            )

    def _withdraw(self, shard: int, done: Mapping[str, str]) -> None:
        """Remove what this process gave a name, unless a commit needs it."""
        if self._target.exists(layout.index_part(shard)):
            return
        for name, own in done.items():
            if self._target.identity(name) == own:
                self._target.delete(name)


class _Pools:
    """Threads that copy objects, and threads that read ahead for them."""

    def __init__(self, source: Root, target: Root) -> None:
        threads = max(source.threads, target.threads)
        self.objects = ThreadPoolExecutor(threads, "eagle3data-copy")
        self.readers = ThreadPoolExecutor(threads, "eagle3data-read")

    def __enter__(self) -> _Pools:
        return self

    def __exit__(self, *_: object) -> None:
        self.objects.shutdown()
        self.readers.shutdown(cancel_futures=True)
