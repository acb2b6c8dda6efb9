"""What a byte-for-byte copy takes from its source, and whether a target holds the same already."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import pyarrow as pa

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.errors import CorruptionError, MismatchError
from eagle3data.storage import layout, ledger, tombstones
from eagle3data.storage.gathered import checked_part
from eagle3data.storage.root import Root
from eagle3data.transfer.objects import ObjectFacts

STATES_GROUP = "hidden_states/zarr.json"


class VerbatimSource:
    """A data set whose objects are copied as they are.

    Attributes:
        dataset: the source.
        manifest: its manifest.
        shards: those that are committed, ascending.
    """

    def __init__(self, dataset: Dataset) -> None:
        """List the committed shards."""
        self.dataset, self.manifest = dataset, dataset.manifest
        self.shards = layout.committed_shards(dataset.root)

    def read(self, name: str) -> bytes:
        """A whole object.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.dataset.root.read(name)

    def require_same(self, target: Root, there: list[int], pool: Executor) -> None:
        """Refuse a target that holds anything but a part of this set.

        Args:
            target: where there is a data set.
            there: shards that are committed in it.
            pool: threads to compare index parts with.

        Raises:
            MismatchError: another data set, or a copy of an earlier state of this one that
                can't be continued.
        """
        url, own = target.url, self.dataset.url
        differences = layout.read_manifest(target).differences(self.manifest)
        if differences:
            raise MismatchError(
                f"{url} holds another data set than {own}; it was left as it is. "
                f"There and in the source differ in {'; '.join(differences)}. Choose another place."
            )
        unknown = sorted(set(there) - set(self.shards))
        if unknown:
            raise MismatchError(
                f"{url} has shards that {own} has not ({_some(unknown)}), so it is no "
                "copy of it; it was left as it is. Choose another place."
            )

        def is_same_part(shard: int) -> bool:
            name = layout.index_part(shard)
            return target.read(name) == self.read(name)

        same = pool.map(is_same_part, there)
        other = [shard for shard, is_same in zip(there, same, strict=True) if not is_same]
        if other:
            raise MismatchError(
                f"{url} holds other samples than {own} in shards {_some(other)}, so "
                "it is no copy of it; it was left as it is. Choose another place."
            )

    def shard_bytes(self, shard: int) -> int:
        """Bytes of a shard's objects, as its index part states them."""
        _, facts = layout.read_table(self.dataset.root, layout.index_part(shard))
        return sum(stated["bytes"] for stated in self._stated_objects(shard, facts).values())

    def array_document(self, array: str) -> bytes:
        """An array's metadata.

        Raises:
            CorruptionError: it is not there.
        """
        name = layout.array_document(array)
        try:
            return self.read(name)
        except FileNotFoundError:
            raise CorruptionError(
                "object_missing", f"{name} is not there", url=self.dataset.url, array=array
            ) from None

    def plan_segments(self) -> list[str]:
        """Names of the plan's segments that can't change any more."""
        found = self.dataset.root.names("plan")
        names = [f"plan/{name}" for name in found if name.endswith(".arrow")]
        if self.manifest.plan_digest is not None:
            return names
        # A set that grew sample by sample has a segment a shard, final once that is committed.
        final = {layout.plan_segment(shard) for shard in self.shards}
        return [name for name in names if name in final]

    def notes(self) -> list[str]:
        """Names of tombstones and ledger rows."""
        return [
            f"{folder}/{name}"
            for folder in (tombstones.FOLDER, ledger.FOLDER)
            for name in self.dataset.root.names(folder)
            if name.endswith(".json")
        ]

    def shard(self, shard: int) -> tuple[bytes, list[ObjectFacts]]:
        """A shard's index part, and what of the shard has to be copied.

        Raises:
            CorruptionError: an index part that is not as it was committed, or that doesn't say
                what an object has to be.
        """
        root, name = self.dataset.root, layout.index_part(shard)
        part = self.read(name)
        table, facts = layout.decode_table(root, name, part)
        rows = checked_part(root, shard, table, facts).rows
        return part, self._objects(shard, rows, facts)

    def _objects(self, shard: int, rows: pa.Table, facts: Mapping[str, Any]) -> list[ObjectFacts]:
        owners = _owners(self.manifest.storage.axis, rows)
        stated = self._stated_objects(shard, facts)
        paths = {
            array: layout.shard_object(array, shard) for array in layout.array_names(self.manifest)
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
        url = self.dataset.url
        return CorruptionError("index_changed", message, url=url, array=array, shard=shard)


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
