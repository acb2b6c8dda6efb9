"""A data set written and looked through as `docs/format.md` says, with nothing of the package.

zarr-python, pyarrow and the standard library are what anybody has; slow and simple.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec

_INDEX: list[pa.Field[Any]] = [
    pa.field("sample_id", pa.string(), nullable=False),
    pa.field("token_offset", pa.int64(), nullable=False),
    pa.field("length", pa.int32(), nullable=False),
    pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
    pa.field("loss_mask", pa.list_(pa.bool_()), nullable=False),
    pa.field("n_loss_tokens", pa.int32(), nullable=False),
    pa.field("tokens_crc32c", pa.uint32(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("split", pa.string()),
    pa.field("source_extra", pa.map_(pa.string(), pa.string())),
    pa.field("absmax", pa.list_(pa.float32()), nullable=False),
    pa.field("rms", pa.list_(pa.float32()), nullable=False),
    pa.field("min_row_rms", pa.list_(pa.float32()), nullable=False),
    pa.field("n_zero_rows", pa.list_(pa.int32()), nullable=False),
    pa.field("n_nan", pa.list_(pa.int64()), nullable=False),
    pa.field("n_inf", pa.list_(pa.int64()), nullable=False),
    pa.field("witness_token", pa.int32()),
    pa.field("witness_logprob", pa.float32()),
]
INDEX = pa.schema(_INDEX)
_PLAN: list[pa.Field[Any]] = [
    pa.field("sample_id", pa.string(), nullable=False),
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("token_offset", pa.int64(), nullable=False),
    pa.field("length", pa.int32(), nullable=False),
    pa.field("tokens_crc32c", pa.uint32(), nullable=False),
]
PLAN = pa.schema(_PLAN)


class Tokens(NamedTuple):
    """A sample: states `[layers, T, H]` float16, ids and mask `[T]`."""

    name: str
    states: np.ndarray[Any, np.dtype[np.float16]]
    ids: np.ndarray[Any, np.dtype[np.int32]]
    mask: np.ndarray[Any, np.dtype[np.uint8]]
    split: str | None


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def canonical_digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def lines_digest(lines: Iterable[str]) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def sample_id(ids: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> str:
    data = ids.astype("<i4").tobytes() + mask.astype("u1").tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def rows_digest(table: pa.Table) -> str:
    """The page's digest of rows, from Python values."""
    counts: dict[str, int] = {}
    streams: dict[str, bytes] = {}
    for field in table.schema:
        _column(field.name, field.type, table[field.name].to_pylist(), counts, streams)
    whole = hashlib.sha256()
    for path in sorted(counts):
        whole.update(f"{path} {counts[path]}\n".encode())
    for path in sorted(streams):
        whole.update(path.encode() + b"\n" + hashlib.sha256(streams[path]).digest())
    return "sha256:" + whole.hexdigest()


def _column(
    path: str, kind: Any, values: list[Any], counts: dict[str, int], streams: dict[str, bytes]
) -> None:
    if not values:
        return
    counts[path] = len(values)
    nulls = [at for at, value in enumerate(values) if value is None]
    if nulls:
        streams[f"{path} nulls"] = np.array(nulls, "<i8").tobytes()
    there = [value for value in values if value is not None]
    if pa.types.is_string(kind):
        texts = [value.encode() for value in there]
        streams[path] = np.array([len(text) for text in texts], "<i4").tobytes()
        streams[f"{path} bytes"] = b"".join(texts)
    elif pa.types.is_map(kind):
        streams[path] = np.array([len(value) for value in there], "<i4").tobytes()
        pairs = [pair for value in there for pair in value]
        _column(f"{path} keys", kind.key_type, [key for key, _ in pairs], counts, streams)
        _column(f"{path} values", kind.item_type, [value for _, value in pairs], counts, streams)
    elif pa.types.is_list(kind):
        streams[path] = np.array([len(value) for value in there], "<i4").tobytes()
        items = [item for value in there for item in value]
        _column(f"{path} items", kind.value_type, items, counts, streams)
    elif pa.types.is_boolean(kind):
        streams[path] = bytes(there)
    else:
        streams[path] = np.array(there, kind.to_pandas_dtype()).tobytes()


def identity(manifest: dict[str, Any]) -> str:
    target = {key: value for key, value in manifest["target"].items() if key != "name"}
    capture = manifest["capture"]
    return canonical_digest(
        {
            "target": target,
            "tokenizer": manifest["tokenizer"],
            "engine": capture["engine"],
            "layers": capture["layers"],
            "capture_dtype": capture["dtype"],
            "norm_state": capture["norm_state"],
            "storage": manifest["storage"],
        }
    )


def write(folder: Path, manifest: dict[str, Any], samples: list[Tokens]) -> None:
    """One after another, each shard filled as far as whole samples go."""
    layers, storage = manifest["capture"]["layers"], manifest["storage"]
    size, chunk = storage["shard_tokens"], storage["chunk_tokens"]
    offsets, cursor = [], 0
    for sample in samples:
        room = -(-len(sample.ids) // chunk) * chunk
        if cursor % size + room > size:
            cursor = -(-cursor // size) * size
        offsets.append(cursor)
        cursor += room
    shards = offsets[-1] // size + 1
    attributes = {"eagle3data": manifest, "eagle3data_digest": canonical_digest(manifest)}
    group: Any = zarr.create_group(str(folder), zarr_format=3, attributes=attributes)
    width = manifest["target"]["hidden_size"]
    names = {f"hidden_states/{layer}": layer for layer in layers}
    for name, layer in names.items():
        about = {"layer": layer, "dtype": storage["dtype"]}
        _array(group, name, shards, size, chunk, (width,), "float16", float("nan"), about)
    _array(group, "input_ids", shards, size, chunk, (), "int32", -1, {})
    _array(group, "loss_mask", shards, size, chunk, (), "uint8", 255, {})
    for shard in range(shards):
        held = [
            (offset, sample)
            for offset, sample in zip(offsets, samples, strict=True)
            if offset // size == shard
        ]
        first = shard * size
        for slot, name in enumerate(names):
            values = np.full((size, width), np.nan, np.float16)
            for offset, sample in held:
                values[offset - first : offset - first + len(sample.ids)] = sample.states[slot]
            group[name][first : first + size] = values
        for name, fill, kind in (("input_ids", -1, "<i4"), ("loss_mask", 255, "u1")):
            row = np.full(size, fill, kind)
            for offset, sample in held:
                row[offset - first : offset - first + len(sample.ids)] = (
                    sample.ids if name == "input_ids" else sample.mask
                )
            group[name][first : first + size] = row
        _plan(folder, manifest, shard, held)
        _part(folder, shard, [*names, "input_ids", "loss_mask"], held, size // chunk)


def _array(
    group: Any, name: str, shards: int, size: int, chunk: int, width: tuple[int, ...],
    dtype: str, fill: float, attributes: dict[str, Any],
) -> None:  # fmt: skip
    group.create_array(
        name,
        shape=(shards * size, *width),
        shards=(size, *width),
        chunks=(chunk, *width),
        dtype=dtype,
        fill_value=fill,
        serializer=BytesCodec() if dtype != "uint8" else BytesCodec(endian=None),
        compressors=[Crc32cCodec()],
        filters=None,
        dimension_names=["token", "hidden"][: 1 + len(width)],
        attributes=attributes,
    )


def _plan(
    folder: Path, manifest: dict[str, Any], shard: int, held: list[tuple[int, Tokens]]
) -> None:
    rows = [
        {
            "sample_id": sample.name,
            "shard": shard,
            "token_offset": offset,
            "length": len(sample.ids),
            "tokens_crc32c": crc32c(sample.ids.astype("<i4").tobytes()),
        }
        for offset, sample in held
    ]
    table = pa.Table.from_pylist(rows, PLAN)
    rows_are = rows_digest(table)
    digest = lines_digest([identity(manifest), rows_are])
    facts = {"digest": digest, "rows": rows_are, "first_shard": shard, "shards": 1}
    _arrow(folder / f"plan/{shard:04d}.arrow", table, facts)


def _part(
    folder: Path, shard: int, names: list[str], held: list[tuple[int, Tokens]], chunks_are: int
) -> None:
    table = pa.Table.from_pylist([_row(offset, sample) for offset, sample in held], INDEX)
    objects = []
    for name in names:
        path = f"{name}/c/{shard}" + ("/0" if name.startswith("hidden_states/") else "")
        data = (folder / path).read_bytes()
        sums = b"".join(data[end - 4 : end] for end in _chunk_ends(data, chunks_are))
        objects.append(
            {
                "path": path,
                "bytes": len(data),
                "crc32c": crc32c(data),
                "chunks_crc32c": crc32c(sums),
            }
        )
    facts = {"shard": shard, "rows": rows_digest(table), "objects": objects}
    _arrow(folder / f"index/{shard:08d}.arrow", table, facts)


def _chunk_ends(data: bytes, chunks: int) -> Iterator[int]:
    """Where each stored chunk ends, by the index at the shard's end: 16 bytes a chunk, a CRC32C."""
    for offset, count in np.frombuffer(data[-4 - 16 * chunks : -4], "<u8").reshape(-1, 2):
        if offset != 2**64 - 1:
            yield int(offset + count)


def _row(offset: int, sample: Tokens) -> dict[str, Any]:
    exact = sample.states.astype(np.float64)
    return {
        "sample_id": sample.name,
        "token_offset": offset,
        "length": len(sample.ids),
        "input_ids": sample.ids.tolist(),
        "loss_mask": sample.mask.astype(bool).tolist(),
        "n_loss_tokens": int(sample.mask.sum()),
        "tokens_crc32c": crc32c(sample.ids.astype("<i4").tobytes()),
        "source": f"page:{sample.name}",
        "split": sample.split,
        "source_extra": None if sample.split is None else [("written", "by hand"), ("n", "1")],
        "absmax": np.abs(exact).max(axis=(1, 2)).tolist(),
        "rms": np.sqrt((exact**2).mean(axis=(1, 2))).tolist(),
        "min_row_rms": np.sqrt((exact**2).mean(axis=2)).min(axis=1).tolist(),
        **{name: [0] * len(exact) for name in ("n_zero_rows", "n_nan", "n_inf")},
        "witness_token": None,
        "witness_logprob": None,
    }


def _arrow(path: Path, table: pa.Table, facts: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    table = table.replace_schema_metadata({"eagle3data": json.dumps(facts)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def generation(folder: Path) -> str:
    parts = sorted((folder / "index").glob("[0-9]*.arrow"))
    tombstones = sorted((folder / "quarantine").glob("*.json"))
    tables = [pa.ipc.open_file(str(part)).read_all() for part in parts]
    facts = [json.loads(table.schema.metadata[b"eagle3data"]) for table in tables]
    digest = hashlib.sha256(f"{len(parts)} parts, {len(tombstones)} tombstones\n".encode())
    digest.update(np.array([fact["shard"] for fact in facts], "<i8").tobytes())
    digest.update(np.array([table.num_rows for table in tables], "<i8").tobytes())
    for fact in facts:
        digest.update(bytes.fromhex(fact["rows"].removeprefix("sha256:")))
    for tombstone in tombstones:
        digest.update(f"quarantine/{tombstone.name}\n".encode())
    return "sha256:" + digest.hexdigest()


def samples_of(folder: Path) -> Iterator[tuple[str, dict[int, np.ndarray[Any, Any]], list[int]]]:
    """As the page says to read: each visible sample's id, states by layer and token ids."""
    group: Any = zarr.open_group(str(folder), mode="r")
    manifest = group.attrs["eagle3data"]
    hidden = {path.stem for path in (folder / "quarantine").glob("*.json")}
    for part in sorted((folder / "index").glob("[0-9]*.arrow")):
        table = pa.ipc.open_file(str(part)).read_all()
        facts = json.loads(table.schema.metadata[b"eagle3data"])
        if rows_digest(table) != facts["rows"]:
            raise ValueError(part)
        for row in table.to_pylist():
            key = hashlib.sha256(row["sample_id"].encode()).hexdigest()[:12]
            if f"{facts['shard']:08d}-{key}" in hidden:
                continue
            rows = slice(row["token_offset"], row["token_offset"] + row["length"])
            states = {
                layer: np.asarray(group[f"hidden_states/{layer}"][rows])
                for layer in manifest["capture"]["layers"]
            }
            yield row["sample_id"], states, row["input_ids"]
