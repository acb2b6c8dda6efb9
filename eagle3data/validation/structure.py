"""Level `quick`: the manifest, the plan, the index and the sizes of objects, no state read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.index import INDEX_SCHEMA, check_schema, rows_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.committed import gathered_pieces
from eagle3data.storage.gathered import Parts
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import list_tombstones
from eagle3data.validation.array_metadata import check_array_metadata
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.hidden import keys_by_shard, visible_rows
from eagle3data.validation.index_rows import check_rows
from eagle3data.validation.manifest_checks import check_layers, check_target
from eagle3data.validation.part_facts import stated_objects
from eagle3data.validation.plan_rows import check_plan
from eagle3data.validation.stage import Stage, silent

_READ_AHEAD = 256
"""Parts that are read before they are needed."""

_REGATHER = "Run `eagle3data repair URL`; it makes index/all.arrow anew from the parts."


@dataclass(kw_only=True)
class Structure:
    """What the structure check read and found.

    Attributes:
        manifest: of the data set.
        parts: readable index parts by shard.
        visible: their rows that no tombstone hides.
        objects: by shard, what its part says of each of its objects (`bytes`, `crc32c`), by path.
        findings: in the order found.
        bytes_read: of index parts.
    """

    manifest: Manifest
    parts: dict[int, pa.Table] = field(default_factory=dict)
    visible: dict[int, pa.Table] = field(default_factory=dict)
    objects: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def rows(self) -> pa.Table:
        """All readable rows that no tombstone hides."""
        return pa.concat_tables([INDEX_SCHEMA.empty_table(), *self.visible.values()])

    @property
    def hidden(self) -> int:
        """Rows that tombstones hide."""
        return sum(table.num_rows for table in self.parts.values()) - self.rows.num_rows


def check_structure(
    root: Root, model: str | None, revision: str | None, stage: Stage = silent
) -> Structure:
    """Check everything that needs no state to be read.

    Args:
        root: of the data set.
        model: folder or hub id of the target, to be compared with the manifest's.
        revision: hub revision of the model.
        stage: shows progress.

    Raises:
        InputError: no data set there, or no such model.
        ManifestError: a manifest that can't be read.
    """
    found = Structure(manifest=layout.read_manifest(root))
    found.findings += check_layers(found.manifest)
    if model is not None:
        found.findings += check_target(found.manifest, model, revision)
    shards = layout.committed_shards(root)
    index = root.sizes("index")
    found.bytes_read = sum(index.get(layout.index_part(shard), 0) for shard in shards)
    with stage("reading the index", len(shards), "parts") as advance:
        for shard, part in _parts(root, shards):
            _take_part(shard, part, found)
            advance(1)
    tombstones = list_tombstones(root)
    keys = keys_by_shard(tombstones)
    found.visible = {
        shard: visible_rows(table, keys.get(shard, ())) for shard, table in found.parts.items()
    }
    found.findings += check_rows(found.rows, found.manifest)
    found.findings += _wrong_shards(found)
    found.findings += _objects(root, found)
    held = _gathered_index(root, found)
    found.findings += check_plan(root, found.visible, tombstones, held)
    found.findings += check_array_metadata(root, found.manifest)
    return found


_Part = tuple[pa.Table, dict[str, Any]]


def _parts(root: Root, shards: Sequence[int]) -> Iterator[tuple[int, _Part | Exception]]:
    """Every index part, a few read ahead; what keeps one from being read instead of it."""
    with ThreadPoolExecutor(1 if root.is_local else root.threads, "eagle3data-index") as pool:
        for first in range(0, len(shards), _READ_AHEAD):
            some = shards[first : first + _READ_AHEAD]
            yield from zip(some, pool.map(partial(_part, root), some), strict=True)


def _part(root: Root, shard: int) -> _Part | Exception:
    name = layout.index_part(shard)
    try:
        table, facts = layout.read_table(root, name)
        check_schema(table.schema, INDEX_SCHEMA, name)
    except (CorruptionError, InputError) as error:
        return error
    if not table.schema.equals(INDEX_SCHEMA):
        table = table.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA)
    return table, facts


def _take_part(shard: int, part: _Part | Exception, found: Structure) -> None:
    if isinstance(part, Exception):
        found.findings.append(
            Finding(kind="index_corrupt", detail=str(part), shard=shard, advice=REPAIR)
        )
        return
    table, facts = part
    found.parts[shard] = table
    found.objects[shard] = stated_objects(facts)
    if facts.get("rows") != rows_digest(table):
        found.findings.append(
            Finding(
                kind="index_changed",
                shard=shard,
                detail=f"the rows of {layout.index_part(shard)} are not those it was committed "
                "with.",
                expected=f"digest {facts.get('rows')}",
                advice=REPAIR,
            )
        )


def _wrong_shards(found: Structure) -> Iterator[Finding]:
    span = found.manifest.storage.shard_tokens
    for shard, table in found.visible.items():
        offsets = table["token_offset"].to_numpy()
        for sample_id, offset in zip(_sample_ids(table), offsets, strict=True):
            if offset // span != shard:
                yield Finding(
                    kind="index_overlap",
                    sample_id=sample_id,
                    shard=shard,
                    detail=f"the part of shard {shard} places it at token {offset}, which is "
                    f"shard {offset // span}'s.",
                    advice=REPAIR,
                )


def _objects(root: Root, found: Structure) -> Iterator[Finding]:
    arrays = layout.array_names(found.manifest)
    sizes = {name: size for array in arrays for name, size in root.sizes(f"{array}/c").items()}
    for shard, table in found.visible.items():
        if found.parts[shard].num_rows and not table.num_rows:
            continue  # nobody needs the objects of a shard that is hidden as a whole
        samples = _named(_sample_ids(table))
        for array in arrays:
            path = layout.shard_object(array, shard)
            entry = found.objects[shard].get(path)
            size = sizes.get(path)
            kind, detail = "", ""
            if size is None:
                kind, detail = "object_missing", f"{path} is not there; it holds {samples}."
            elif entry is None:
                kind, detail = "index_changed", f"the index part says nothing of {path}."
            elif size < entry["bytes"]:
                kind = "object_truncated"
                detail = f"{path} has {size} bytes, {entry['bytes']} were committed; {samples}."
            elif size > entry["bytes"]:
                kind = "object_changed"
                detail = f"{path} has {size} bytes, {entry['bytes']} were committed; {samples}."
            if kind:
                layer = layout.layer_of(array)
                yield Finding(kind=kind, shard=shard, layer=layer, detail=detail, advice=REPAIR)


def _sample_ids(table: pa.Table) -> list[str]:
    return [str(name) for name in table["sample_id"].to_pylist()]


def _named(sample_ids: list[str]) -> str:
    more = f" and {len(sample_ids) - 3} more" if len(sample_ids) > 3 else ""
    return f"samples {', '.join(sample_ids[:3])}{more}"


def _gathered_index(root: Root, found: Structure) -> set[int]:
    """Compare `index/all.arrow` with the parts; the shards that it says it holds."""
    if not root.exists(layout.ALL_PARTS):
        return set()
    pieces = gathered_pieces(root)
    if not pieces:
        found.findings.append(
            Finding(
                kind="index_corrupt",
                detail="index/all.arrow is not a whole gathered index; the parts are read instead.",
                advice=_REGATHER,
            )
        )
        return set()
    held = {int(shard) for shard in Parts.joined(piece.parts for piece in pieces).shards}
    for shard in sorted(held - set(layout.committed_shards(root))):
        found.findings.append(
            Finding(
                kind="index_hole",
                shard=shard,
                detail=f"index/all.arrow holds shard {shard}, but {layout.index_part(shard)} is "
                "gone.",
                advice=REPAIR,
            )
        )
    parts = [found.parts[shard] for shard in sorted(held & set(found.parts))]
    own = pa.concat_tables([INDEX_SCHEMA.empty_table(), *parts])
    gathered = pa.concat_tables([piece.rows for piece in pieces])
    # Rows that hold a NaN equal nothing, though their digests can be equal.
    same = own.equals(gathered) or rows_digest(own) == rows_digest(gathered)
    if held <= set(found.parts) and not same:
        found.findings.append(
            Finding(
                kind="index_changed",
                detail="index/all.arrow holds other rows than the parts it was gathered from.",
                advice=_REGATHER,
            )
        )
        found.findings += check_rows(gathered, found.manifest)
    return held
