"""Names of everything below a root URL, and the small documents among them (see the format).

zarr.json                     the group; attributes["eagle3data"] is the manifest, with its digest
hidden_states/<layer>/...     one array a captured layer, c/<shard>/0 its shards
input_ids/..., loss_mask/...  the same token axis and shards, c/<shard>
plan/<segment>.arrow          which samples go where
index/<shard>.arrow           the commit marker of a shard; index/all.arrow all in one
ledger/<shard>-<n>.json       what was tried and failed
quarantine/<shard>-<id>.json  samples that are hidden though their bytes stay
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from eagle3data.schema.digest import json_digest
from eagle3data.schema.errors import CorruptionError, InputError, ManifestError
from eagle3data.schema.index import PLAN_SCHEMA, check_schema, plan_rows_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.storage.root import Root

GROUP = "zarr.json"
MANIFEST = "eagle3data"
MANIFEST_DIGEST = "eagle3data_digest"
INPUT_IDS = "input_ids"
LOSS_MASK = "loss_mask"
ALL_PARTS = "index/all.arrow"
_FACTS = b"eagle3data"
_PART = re.compile(r"[0-9]{8,}\.arrow")


def states_array(layer: int) -> str:
    """Array of one captured layer."""
    return f"hidden_states/{layer}"


def layer_of(array: str) -> int | None:
    """The layer whose states an array holds; None for ids and masks."""
    return int(array.rsplit("/", 1)[1]) if array.startswith("hidden_states/") else None


def array_names(manifest: Manifest) -> list[str]:
    """All arrays of a data set, states first."""
    return [*(states_array(layer) for layer in manifest.layers), INPUT_IDS, LOSS_MASK]


def array_document(array: str) -> str:
    """The Zarr metadata of an array."""
    return f"{array}/zarr.json"


def shard_object(array: str, shard: int) -> str:
    """The one object that holds a shard of an array."""
    return f"{array}/c/{shard}/0" if array.startswith("hidden_states/") else f"{array}/c/{shard}"


def index_part(shard: int) -> str:
    """The commit marker of a shard."""
    return f"index/{shard:08d}.arrow"


def plan_segment(segment: int) -> str:
    """A part of the plan; the first is 0."""
    return f"plan/{segment:04d}.arrow"


def committed_shards(root: Root) -> list[int]:
    """Shards whose index part exists, ascending."""
    return shards_of(root.names("index"))


def shards_of(names: Iterable[str]) -> list[int]:
    """Shards whose index part is among names from `index/`, ascending."""
    return sorted(int(name[:-6]) for name in names if _PART.fullmatch(name))


def read_manifest(root: Root) -> Manifest:
    """The manifest of the data set at a root.

    Raises:
        InputError: nothing is there.
        ManifestError: something else is there, or a manifest that this version can't read.
    """
    root.require_reachable()
    try:
        group = json.loads(root.read(GROUP))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise InputError(
            f"{root.url} holds no data set: there is no zarr.json below it. Expected the URL that "
            "`extract --out` was given."
        ) from None
    except ValueError as error:
        raise ManifestError(
            f"{root.url}/zarr.json is not JSON ({error}). Put back a copy; the manifest can't be "
            "made again from the shards."
        ) from None
    attributes = group.get("attributes") if isinstance(group, dict) else None
    if not isinstance(attributes, dict):
        attributes = {}
    manifest = attributes.get(MANIFEST)
    if manifest is not None and json_digest(manifest) != attributes.get(MANIFEST_DIGEST):
        raise ManifestError(
            f"the manifest in {root.url}/zarr.json is not the one that was written: its digest is "
            f"{json_digest(manifest)}, stored beside it is {attributes.get(MANIFEST_DIGEST)}. Put "
            "back a copy of zarr.json; it is never changed after it was written."
        )
    return Manifest.from_json(manifest, root.url)


def manifest_attributes(manifest: Manifest) -> dict[str, Any]:
    """The group's attributes: the manifest, and a digest that shows when it was changed."""
    value = manifest.model_dump(mode="json")
    return {MANIFEST: value, MANIFEST_DIGEST: json_digest(value)}


def encode_table(table: pa.Table, facts: Mapping[str, Any]) -> bytes:
    """An Arrow IPC file of the table, with JSON facts about the writing in its metadata."""
    sink = pa.BufferOutputStream()
    metadata = {_FACTS: json.dumps(facts, sort_keys=True).encode()}
    table = table.replace_schema_metadata(metadata)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def read_table(root: Root, name: str) -> tuple[pa.Table, dict[str, Any]]:
    """A table and its facts, read into memory.

    Raises:
        CorruptionError: missing, truncated or not an Arrow file.
    """
    try:
        data = root.read(name)
    except FileNotFoundError:
        raise CorruptionError("object_missing", f"{name} is gone", url=root.url) from None
    except OSError as error:
        raise _no_table(root, name, error) from None
    return decode_table(root, name, data)


def read_facts(root: Root, name: str) -> dict[str, Any]:
    """The facts of a table alone, without looking at its rows.

    Raises:
        CorruptionError: missing, or its end is not that of an Arrow file.
    """
    try:
        return facts_of(pa.ipc.open_file(pa.BufferReader(root.read(name))).schema)
    except FileNotFoundError:
        raise CorruptionError("object_missing", f"{name} is gone", url=root.url) from None
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _no_table(root, name, error) from None


def decode_table(root: Root, name: str, data: bytes) -> tuple[pa.Table, dict[str, Any]]:
    """A table and its facts, from the bytes of the object that has this name.

    Raises:
        CorruptionError: truncated or not an Arrow file.
    """
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)
        facts = facts_of(table.schema)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _no_table(root, name, error) from None
    return table, facts


def facts_of(schema: pa.Schema) -> dict[str, Any]:
    """The JSON facts in a table's metadata.

    Raises:
        ValueError, TypeError: there is something else.
    """
    return dict(json.loads((schema.metadata or {}).get(_FACTS, b"{}")))


def _no_table(root: Root, name: str, error: Exception) -> CorruptionError:
    return CorruptionError(
        "index_corrupt",
        f"{name} is not a whole Arrow file ({error}); `eagle3data repair` mends that",
        url=root.url,
    )


def read_plan(root: Root) -> pa.Table:
    """All plan segments in order; `PLAN_SCHEMA` rows in token order.

    Raises:
        CorruptionError: a segment is no Arrow file, or not as it was written.
    """
    segments = [read_plan_segment(root, name) for name in plan_segments(root)]
    return pa.concat_tables([PLAN_SCHEMA.empty_table(), *segments])


def read_plan_segment(root: Root, name: str) -> pa.Table:
    """The rows of one plan segment (`PLAN_SCHEMA`), checked against their digest.

    Raises:
        CorruptionError: it is gone, no Arrow file, or not as it was written.
    """
    table, facts = read_table(root, name)
    check_schema(table.schema, PLAN_SCHEMA, f"{root.url}/{name}")
    table = table.select(PLAN_SCHEMA.names).cast(PLAN_SCHEMA)
    digest = plan_rows_digest(table)
    if facts.get("rows") != digest:
        raise CorruptionError(
            "plan_corrupt",
            f"the rows of {name} have digest {digest}, it was written with {facts.get('rows')}; "
            "`eagle3data repair` mends that",
            url=root.url,
        )
    return table


def plan_facts(root: Root) -> list[dict[str, Any]]:
    """What each plan segment says about itself: `digest`, `first_shard`, `shards`, ...

    Raises:
        CorruptionError: a segment is no Arrow file.
    """
    return [read_table(root, name)[1] for name in plan_segments(root)]


def plan_segments(root: Root) -> list[str]:
    """Names of the plan's segments, in order."""
    # `DatasetWriter` numbers segments by their shard, so a killed one can leave a gap.
    names = [name for name in root.names("plan") if re.fullmatch(r"[0-9]{4,}\.arrow", name)]
    return [f"plan/{name}" for name in sorted(names, key=lambda name: int(name[:-6]))]
