"""Level `quick`: the arrays' Zarr metadata, so that other readers see what ours does."""

from __future__ import annotations

import json
from collections.abc import Iterator

from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import metadata_documents
from eagle3data.storage.root import Root
from eagle3data.validation.findings import Finding


def check_array_metadata(root: Root, manifest: Manifest) -> Iterator[Finding]:
    """Every array's `zarr.json` against what the manifest asks for; the shape may have grown."""
    for name, wanted in metadata_documents(manifest, shards=0).items():
        if name in {layout.GROUP, "hidden_states/zarr.json"}:
            continue
        expected, array = json.loads(wanted), name.removesuffix("/zarr.json")
        try:
            found = json.loads(root.read(name))
            differing = sorted(
                key for key in expected if key != "shape" and found.get(key) != expected[key]
            )
            rows = int(found["shape"][0])
            if rows % manifest.storage.shard_tokens or found["shape"][1:] != expected["shape"][1:]:
                differing.append("shape")
            last = max(layout.committed_shards(root), default=-1)
            if rows < (last + 1) * manifest.storage.shard_tokens:
                differing.append("shape")
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            differing = [f"it can't be read ({type(error).__name__})"]
        if differing:
            yield Finding(
                kind="array_metadata",
                layer=layout.layer_of(array),
                detail=f"{name} is not what the manifest asks for: {', '.join(differing)}. Other "
                "Zarr readers would misread or refuse the array.",
                advice="Put back a copy of the document; the shards are not affected.",
            )
