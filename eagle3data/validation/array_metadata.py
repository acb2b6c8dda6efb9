"""Level `quick`: the arrays' Zarr metadata, so that other readers see what ours does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import metadata_documents
from eagle3data.storage.root import Root
from eagle3data.validation.findings import Finding


def check_array_metadata(root: Root, manifest: Manifest) -> Iterator[Finding]:
    """Every array's `zarr.json` against what the manifest asks for; the shape may have grown."""
    for name, differing in differing_documents(root, manifest).items():
        yield Finding(
            kind="array_metadata",
            layer=layout.layer_of(name.removesuffix("/zarr.json")),
            detail=f"{name} is not what the manifest asks for: {', '.join(differing)}. Other "
            "Zarr readers would misread or refuse the array.",
            advice="Run `eagle3data repair URL`; it writes the document anew.",
        )


def differing_documents(root: Root, manifest: Manifest) -> dict[str, list[str]]:
    """Metadata documents that are not what the manifest asks for: name to the fields that differ.

    Raises:
        OSError: a document is there but can't be read.
    """
    last = max(layout.committed_shards(root), default=-1)
    found = {}
    for name, wanted in metadata_documents(manifest, shards=last + 1).items():
        if name in {layout.GROUP, "hidden_states/zarr.json"}:
            continue
        differing = _differing(root, name, json.loads(wanted), manifest.storage.shard_tokens)
        if differing:
            found[name] = differing
    return found


def _differing(root: Root, name: str, expected: dict[str, Any], shard_tokens: int) -> list[str]:
    try:
        found = json.loads(root.read(name))
        differing = sorted(
            key for key in expected if key != "shape" and found.get(key) != expected[key]
        )
        rows, wanted_rows = int(found["shape"][0]), expected["shape"][0]
        same_width = found["shape"][1:] == expected["shape"][1:]
        if rows % shard_tokens or rows < wanted_rows or not same_width:
            differing.append("shape")
    except FileNotFoundError:
        return ["it is not there"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        return [f"it can't be read ({type(error).__name__})"]
    return differing
