"""The arrays of a data set: their Zarr v3 metadata and their chunk codecs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np

from eagle3data.schema.manifest import Codec, Manifest, StorageDtype
from eagle3data.storage import layout
from eagle3data.storage.codecs import ChunkCodec, zarr_codecs
from eagle3data.storage.root import Root

_STORED_DTYPE = {StorageDtype.FLOAT16: np.dtype("<f2"), StorageDtype.BFLOAT16: np.dtype("<u2")}
# Fill values that can't be mistaken for data: NaN (a quiet NaN's bits in bfloat16), -1, 255.
_STATES_FILL: dict[StorageDtype, float | int] = {
    StorageDtype.FLOAT16: float("nan"),
    StorageDtype.BFLOAT16: 0x7FC0,
}
IDS_FILL = -1
MASK_FILL = 255


def states_dtype(manifest: Manifest) -> np.dtype[Any]:
    """numpy dtype of the stored states; bfloat16 lies there as uint16 bits."""
    return _STORED_DTYPE[manifest.storage.dtype]


def states_fill(manifest: Manifest) -> float | int:
    """Fill value of the state arrays, as stored."""
    return _STATES_FILL[manifest.storage.dtype]


def chunk_codec(manifest: Manifest, array: str) -> ChunkCodec:
    """The codec of one array's chunks; ids and masks are tiny and never compressed."""
    chunk = manifest.storage.chunk_tokens
    if array == layout.INPUT_IDS:
        return ChunkCodec(profile=Codec.NONE, dtype=np.dtype("<i4"), shape=(chunk,))
    if array == layout.LOSS_MASK:
        return ChunkCodec(profile=Codec.NONE, dtype=np.dtype("u1"), shape=(chunk,))
    return ChunkCodec(
        profile=manifest.storage.codec,
        dtype=states_dtype(manifest),
        shape=(chunk, manifest.hidden_size),
    )


def fill_of(manifest: Manifest, array: str) -> float | int:
    """The array's fill value."""
    special = {layout.INPUT_IDS: IDS_FILL, layout.LOSS_MASK: MASK_FILL}
    return special.get(array, states_fill(manifest))


def fill_row(manifest: Manifest, array: str) -> bytes:
    """A row of the array's fill value, as it is stored uncompressed."""
    codec = chunk_codec(manifest, array)
    return np.full(codec.shape[1:], fill_of(manifest, array), codec.dtype).tobytes()


def metadata_documents(manifest: Manifest, shards: int) -> dict[str, bytes]:
    """Every `zarr.json` of a data set of `shards` shards, made by zarr-python, by name."""
    import zarr
    from zarr.storage import MemoryStore

    store: dict[str, Any] = {}
    group = zarr.create_group(
        MemoryStore(store), zarr_format=3, attributes=layout.manifest_attributes(manifest)
    )
    axis = manifest.storage.axis
    for array in layout.array_names(manifest):
        codec = chunk_codec(manifest, array)
        width = codec.shape[1:]
        group.create_array(
            array,
            shape=(shards * axis.shard_tokens, *width),
            shards=(axis.shard_tokens, *width),
            chunks=codec.shape,
            dtype=codec.dtype,
            fill_value=fill_of(manifest, array),
            dimension_names=["token", "hidden"][: len(codec.shape)],
            attributes=_array_attributes(manifest, array),
            **zarr_codecs(codec.profile, codec.dtype),
        )
    documents = asyncio.run(_documents(store))
    return {layout.GROUP: documents.pop(layout.GROUP), **documents}


async def _documents(store: dict[str, Any]) -> dict[str, bytes]:
    return {
        name: buffer.to_bytes()
        for name, buffer in store.items()
        # create_array writes the implicit group of `hidden_states` too; it carries nothing of ours.
        if name.endswith("zarr.json")
    }


def _array_attributes(manifest: Manifest, array: str) -> dict[str, Any]:
    if not array.startswith("hidden_states/"):
        return {}
    return {"layer": int(array.rsplit("/", 1)[1]), "dtype": manifest.storage.dtype.value}


def resize_arrays(root: Root, manifest: Manifest, shards: int) -> None:
    """Let every array span `shards` shards (never fewer than before)."""
    for array in layout.array_names(manifest):
        name = layout.array_document(array)
        document = json.loads(root.read(name))
        wanted = shards * manifest.storage.shard_tokens
        if document["shape"][0] < wanted:
            document["shape"][0] = wanted
            root.replace(name, json.dumps(document, indent=2).encode())
