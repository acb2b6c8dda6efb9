"""Names of everything below a root URL, and the small documents among them (see the format).

zarr.json                     the group; attributes["eagle3data"] is the manifest
hidden_states/<layer>/...     one array a captured layer, c/<shard>/0 its shards
input_ids/..., loss_mask/...  the same token axis and shards, c/<shard>
plan/<segment>.arrow          which samples go where
index/<shard>.arrow           the commit marker of a shard; index/all.arrow all in one
ledger/<shard>-<n>.json       what was tried and failed
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from eagle3data.schema.errors import CorruptionError, InputError, ManifestError
from eagle3data.schema.index import PLAN_SCHEMA, check_schema
from eagle3data.schema.manifest import Manifest
from eagle3data.storage.root import Root

GROUP = "zarr.json"
INPUT_IDS = "input_ids"
LOSS_MASK = "loss_mask"
ALL_PARTS = "index/all.arrow"
_FACTS = b"eagle3data"


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
    return [
        int(name.removesuffix(".arrow"))
        for name in root.names("index")
        if re.fullmatch(r"[0-9]{8,}\.arrow", name)
    ]


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
    return Manifest.from_json(attributes.get("eagle3data"), root.url)


def encode_table(table: pa.Table, facts: Mapping[str, Any]) -> bytes:
    """An Arrow IPC file of the table, with JSON facts about the writing in its metadata."""
    sink = pa.BufferOutputStream()
    metadata = {_FACTS: json.dumps(facts, sort_keys=True).encode()}
    table = table.replace_schema_metadata(metadata)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def read_table(root: Root, name: str) -> tuple[pa.Table, dict[str, Any]]:
    """A table and its facts, memory-mapped where the root is local.

    Raises:
        CorruptionError: missing, truncated or not an Arrow file.
    """
    try:
        source = (
            pa.memory_map(root.join(name)) if root.is_local else pa.BufferReader(root.read(name))
        )
        table = pa.ipc.open_file(source).read_all()
        facts = json.loads((table.schema.metadata or {}).get(_FACTS, b"{}"))
    except FileNotFoundError:
        raise CorruptionError("object_missing", f"{name} is gone", url=root.url) from None
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise CorruptionError(
            "index_corrupt",
            f"{name} is not a whole Arrow file ({error}); `eagle3data validate` says what to do",
            url=root.url,
        ) from None
    return table, facts


def read_gathered(root: Root) -> tuple[pa.Table, dict[int, str]] | None:
    """`index/all.arrow` and the digests of the parts it was gathered from.

    None where there is none, or where it is damaged or something else: all it holds is in the
    parts, so it is no loss (`validate` reports it).
    """
    if not root.exists(ALL_PARTS):
        return None
    try:
        table, facts = read_table(root, ALL_PARTS)
    except CorruptionError:
        return None
    parts = {int(shard): str(rows) for shard, rows in facts.get("parts", {}).items()}
    return (table, parts) if parts else None


def read_plan(root: Root) -> pa.Table:
    """All plan segments in order; `PLAN_SCHEMA` rows in token order.

    Raises:
        CorruptionError: a segment is missing or no Arrow file.
    """
    segments = [name for name in root.names("plan") if name.endswith(".arrow")]
    tables = [PLAN_SCHEMA.empty_table()]
    for segment in range(len(segments)):
        table, _ = read_table(root, plan_segment(segment))
        check_schema(table.schema, PLAN_SCHEMA, f"{root.url}/{plan_segment(segment)}")
        tables.append(table.select(PLAN_SCHEMA.names).cast(PLAN_SCHEMA))
    return pa.concat_tables(tables)
