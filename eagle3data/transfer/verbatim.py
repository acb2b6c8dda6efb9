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
from typing import Any

import pyarrow as pa

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.index import read_index
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.errors import (
    AlreadyExistsError,
    CorruptionError,
    LostClaimError,
    MismatchError,
)
from eagle3data.storage import layout, ledger, tombstones
from eagle3data.storage.arrays import resize_arrays
from eagle3data.storage.claims import MANIFEST, Claim, Claims
from eagle3data.storage.gathered import checked_part
from eagle3data.storage.parallel import run_all
from eagle3data.storage.root import Root
from eagle3data.transfer.job import CopyReport, OnBytes, Preview, free_bytes, require_space
from eagle3data.transfer.objects import ObjectCopy, ObjectFacts
from eagle3data.writers.data_set import consolidate_index, create_once
from eagle3data.writers.shard_writer import remove_orphans
from eagle3data.writers.shared_shards import OnWait, SharedShards

_STATES_GROUP = "hidden_states/zarr.json"


class VerbatimCopy:
    """Makes a data set at another place that is the same to the byte."""

    def __init__(self, source: Dataset, target: Root) -> None:
        """Compare what is at the target with the source; writes nothing.

        Raises:
            MismatchError: the target holds another data set, or a copy of an earlier state of
                this one that can't be continued.
            CorruptionError: an index part of the source that can't be read.
        """
        self._source, self._target = source, target
        self._manifest = source.manifest
        self._shards = layout.committed_shards(source.root)
        there = layout.committed_shards(target)
        with ThreadPoolExecutor(max(source.root.threads, target.threads)) as pool:
            if target.exists(layout.GROUP):
                self._require_same(there, pool)
            sizes = dict(zip(self._shards, pool.map(self._shard_bytes, self._shards), strict=True))
        missing = set(self._shards) - set(there)
        nbytes = sum(sizes[shard] for shard in missing)
        self.preview = Preview(
            byte_for_byte=True,
            samples=len(source),
            tokens=source.tokens,
            shards=len(self._shards),
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
            shared = SharedShards(self._target, claims, self._shards, on_wait)
            with _Pools(self._source.root, self._target) as pools:
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

    def _require_same(self, there: list[int], pool: ThreadPoolExecutor) -> None:
        url = self._target.url
        differences = layout.read_manifest(self._target).differences(self._manifest)
        if differences:
            raise MismatchError(
                f"{url} holds another data set than {self._source.url}; it was left as it is. "
                f"There and in the source differ in {'; '.join(differences)}. Choose another place."
            )
        unknown = sorted(set(there) - set(self._shards))
        if unknown:
            raise MismatchError(
                f"{url} has shards that {self._source.url} has not ({_some(unknown)}), so it is no "
                "copy of it; it was left as it is. Choose another place."
            )
        same = pool.map(self._is_same_part, there)
        other = [shard for shard, is_same in zip(there, same, strict=True) if not is_same]
        if other:
            raise MismatchError(
                f"{url} holds other samples than {self._source.url} in shards {_some(other)}, so "
                "it is no copy of it; it was left as it is. Choose another place."
            )

    def _is_same_part(self, shard: int) -> bool:
        name = layout.index_part(shard)
        return self._target.read(name) == self._source.root.read(name)

    def _shard_bytes(self, shard: int) -> int:
        _, facts = layout.read_table(self._source.root, layout.index_part(shard))
        return sum(stated["bytes"] for stated in self._stated_objects(shard, facts).values())

    def _copy_documents(self, claims: Claims) -> None:
        """Everything that is not a shard; the group with the manifest first."""
        source, target = self._source.root, self._target
        create_once(target, layout.GROUP, source.read(layout.GROUP))
        if source.exists(_STATES_GROUP):
            create_once(target, _STATES_GROUP, source.read(_STATES_GROUP))
        tokens = 0
        for array in layout.array_names(self._manifest):
            document = self._array_document(array)
            create_once(target, layout.array_document(array), document)
            tokens = json.loads(document)["shape"][0]
        with claims.holding(MANIFEST):
            # The source may have grown since the copy was begun.
            resize_arrays(target, self._manifest, tokens // self._manifest.storage.shard_tokens)
        for name in self._plan_segments():
            self._copy_plan(name)
        for folder in (tombstones.FOLDER, ledger.FOLDER):
            for name in source.names(folder):
                if name.endswith(".json"):
                    create_once(target, f"{folder}/{name}", source.read(f"{folder}/{name}"))

    def _array_document(self, array: str) -> bytes:
        name = layout.array_document(array)
        try:
            return self._source.root.read(name)
        except FileNotFoundError:
            raise CorruptionError(
                "object_missing", f"{name} is not there", url=self._source.url, array=array
            ) from None

    def _plan_segments(self) -> list[str]:
        found = self._source.root.names("plan")
        names = [f"plan/{name}" for name in found if name.endswith(".arrow")]
        if self._manifest.plan_digest is not None:
            return names
        # A set that grew sample by sample has a segment a shard, final once that is committed.
        final = {layout.plan_segment(shard) for shard in self._shards}
        return [name for name in names if name in final]

    def _copy_plan(self, name: str) -> None:
        data = self._source.root.read(name)
        create_once(self._target, name, data)
        if self._target.read(name) != data:
            raise MismatchError(
                f"{self._target.url}/{name} is not that of {self._source.url}; it was left as it "
                "is. Choose another place."
            )

    def _copy_shard(self, claim: Claim, pools: _Pools, on_bytes: OnBytes) -> bool:
        """Copy one shard, its index part last; false where another process took it over."""
        shard = int(claim.name)
        name = layout.index_part(shard)
        part = self._source.root.read(name)
        table, facts = layout.decode_table(self._source.root, name, part)
        rows = checked_part(self._source.root, shard, table, facts).rows
        objects = self._objects(shard, rows, facts)
        done: dict[str, str] = {}
        try:
            remove_orphans(self._target, self._manifest, shard, claim)
            self._copy_objects(objects, pools, on_bytes, done)
            self._require_own(claim, done)
            self._target.create(name, [part])
        except (AlreadyExistsError, LostClaimError):
            # Another process took this one for dead and does the same shard.
            self._withdraw(shard, done)
            return False
        except BaseException:
            self._withdraw(shard, done)
            raise
        return True

    def _objects(self, shard: int, rows: pa.Table, facts: Mapping[str, Any]) -> list[ObjectFacts]:
        """What has to be copied.

        Raises:
            CorruptionError: the index part doesn't say what an object has to be.
        """
        owners = _owners(self._manifest.storage.axis, rows)
        stated = self._stated_objects(shard, facts)
        paths = {
            array: layout.shard_object(array, shard) for array in layout.array_names(self._manifest)
        }
        for array, path in paths.items():
            if path not in stated:
                raise self._changed(shard, f"it says nothing of {path}", array)
        return [
            ObjectFacts(
                array=array,
                shard=shard,
                path=path,
                nbytes=stated[path]["bytes"],
                crc32c=stated[path]["crc32c"],
                chunks_crc32c=stated[path]["chunks_crc32c"],
                owners=owners,
            )
            for array, path in paths.items()
        ]

    def _stated_objects(self, shard: int, facts: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """Bytes and checksums by path; they are outside the digest of the part's rows."""
        names = ("bytes", "crc32c", "chunks_crc32c")
        try:
            return {
                str(entry["path"]): {name: int(entry[name]) for name in names}
                for entry in facts["objects"]
            }
        except (KeyError, TypeError, ValueError):
            raise self._changed(shard, "it does not say what its objects have to be") from None

    def _changed(self, shard: int, what: str, array: str | None = None) -> CorruptionError:
        message = f"{layout.index_part(shard)} is not as it was committed: {what}"
        url = self._source.url
        return CorruptionError("index_changed", message, url=url, array=array, shard=shard)

    def _copy_objects(
        self,
        objects: Iterable[ObjectFacts],
        pools: _Pools,
        on_bytes: OnBytes,
        done: dict[str, str],
    ) -> None:
        """Copy objects side by side; `done` gets the identity of each that has its name."""

        def copy(facts: ObjectFacts) -> None:
            found = ObjectCopy(self._source, facts)
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


def _owners(axis: TokenAxis, rows: pa.Table) -> dict[int, str]:
    """Sample ids by the chunk numbers of a shard."""
    columns = (rows[name].to_pylist() for name in ("sample_id", "token_offset", "length"))
    return {
        chunk: str(sample_id)
        for sample_id, offset, length in zip(*columns, strict=True)
        for chunk in axis.chunks_of(offset, length)
    }


def _some(shards: list[int]) -> str:
    return ", ".join(map(str, shards[:5])) + (", ..." if len(shards) > 5 else "")
