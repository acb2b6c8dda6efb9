"""Edit a stored data set with stock zarr, pyarrow and crc32c: damage, or a faulty engine's work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zarr

from eagle3data.schema.digest import crc32c, json_digest
from eagle3data.schema.index import INDEX_SCHEMA, rows_digest
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import consolidate_index

States = npt.NDArray[Any]
Row = dict[str, Any]


class StoredSet:
    """A data set on disk, opened by its files alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        group = json.loads((folder / "zarr.json").read_text())
        self.manifest: dict[str, Any] = group["attributes"]["eagle3data"]
        self.layers: list[int] = self.manifest["capture"]["layers"]
        self._arrays: dict[int, Any] = {}
        self._read: dict[Path, tuple[bytes, list[Row]]] = {}

    def parts(self) -> dict[int, Path]:
        files = sorted((self.folder / "index").glob("*[0-9].arrow"))
        return {int(file.stem): file for file in files}

    def rows(self) -> list[Row]:
        """Index rows in order, each with its shard."""
        return [row for shard in self.parts() for row in self.rows_of(shard)]

    def row(self, sample_id: str) -> Row:
        return next(row for row in self.rows() if row["sample_id"] == sample_id)

    def rows_of(self, shard: int) -> list[Row]:
        file = self.parts()[shard]
        data = file.read_bytes()
        if self._read.get(file, (b"",))[0] != data:
            self._read[file] = (data, read_part(file)[0].to_pylist())
        return [{**row, "shard": shard} for row in self._read[file][1]]

    def states(self, layer: int, sample_id: str) -> States:
        row = self.row(sample_id)
        start = row["token_offset"]
        return np.asarray(self._array(layer)[start : start + row["length"]])

    def put(self, layer: int, sample_id: str, states: States) -> None:
        """Overwrite a sample's rows with stock zarr."""
        row = self.row(sample_id)
        start = row["token_offset"]
        self._array(layer)[start : start + row["length"]] = states

    def change(
        self, change: Callable[[States], States], samples: list[str], layers: list[int]
    ) -> None:
        """Put `change(states)` in place of each of the samples' states, as an engine would have."""
        for sample_id in samples:
            for layer in layers:
                self.put(layer, sample_id, change(self.states(layer, sample_id)))
        self.account()

    def object_of(self, layer: int, sample_id: str) -> Path:
        shard = self.row(sample_id)["shard"]
        return self.folder / f"hidden_states/{layer}/c/{shard}/0"

    def edit_rows(self, edit: Callable[[list[Row]], list[Row]], shard: int) -> None:
        """Rewrite an index part's rows with pyarrow, its facts kept true to them."""
        table, facts = read_part(self.parts()[shard])
        rows = edit(table.to_pylist())
        write_part(self.parts()[shard], pa.Table.from_pylist(rows, schema=INDEX_SCHEMA), facts)
        self._gather()

    def account(self) -> None:
        """Let index statistics and object checksums say what is stored now.

        So an engine's fault looks: the writer was handed wrong states and wrote them faithfully.
        """
        for file in self.parts().values():
            table, facts = read_part(file)
            rows = table.to_pylist()
            for row in rows:
                row.update(self._statistics(row))
            for entry in facts["objects"]:
                data = (self.folder / entry["path"]).read_bytes()
                entry.update(bytes=len(data), crc32c=crc32c(data), chunks_crc32c=self._chunks(data))
            write_part(file, pa.Table.from_pylist(rows, schema=INDEX_SCHEMA), facts)
        self._gather()

    def edit_manifest(self, edit: Callable[[dict[str, Any]], None]) -> None:
        group = zarr.open_group(self.folder, mode="r+")
        manifest: dict[str, Any] = dict(self.manifest)
        edit(manifest)
        group.attrs["eagle3data"] = manifest
        group.attrs["eagle3data_digest"] = json_digest(manifest)

    def _array(self, layer: int) -> Any:
        if layer not in self._arrays:
            self._arrays[layer] = zarr.open_array(self.folder / f"hidden_states/{layer}", mode="r+")
        return self._arrays[layer]

    def _chunks(self, data: bytes) -> int:
        """CRC32C over the last four bytes of every stored chunk, in chunk order."""
        storage = self.manifest["storage"]
        count = storage["shard_tokens"] // storage["chunk_tokens"]
        index = np.frombuffer(data[-16 * count - 4 : -4], "<u8").reshape(count, 2)
        ends = [int(offset + size) for offset, size in index if offset != 2**64 - 1]
        return int(crc32c(b"".join(data[end - 4 : end] for end in ends)))

    def _statistics(self, row: Row) -> dict[str, list[float]]:
        start, stop = row["token_offset"], row["token_offset"] + row["length"]
        found: dict[str, list[float]] = {}
        for layer in self.layers:
            states = np.asarray(self._array(layer)[start:stop]).astype(np.float64)
            finite = np.where(np.isfinite(states), states, 0)
            by_row = np.sqrt((finite**2).mean(1))
            values = {
                "absmax": float(np.abs(finite).max()),
                "rms": float(np.sqrt((finite**2).mean())),
                "min_row_rms": float(by_row.min()),
                "n_zero_rows": int((by_row == 0).sum()),
                "n_nan": int(np.isnan(states).sum()),
                "n_inf": int(np.isinf(states).sum()),
            }
            for name, value in values.items():
                found.setdefault(name, []).append(value)
        return found

    def _gather(self) -> None:
        (self.folder / "index/all.arrow").unlink(missing_ok=True)
        consolidate_index(Root(str(self.folder)))


def read_part(file: Path) -> tuple[pa.Table, dict[str, Any]]:
    with pa.OSFile(str(file), "rb") as source:
        table = pa.ipc.open_file(source).read_all()
    facts = json.loads((table.schema.metadata or {})[b"eagle3data"])
    return table, facts


def write_part(file: Path, table: pa.Table, facts: dict[str, Any]) -> None:
    _write(file, table, {**facts, "rows": rows_digest(table)})


def _write(file: Path, table: pa.Table, facts: dict[str, Any]) -> None:
    table = table.replace_schema_metadata({b"eagle3data": json.dumps(facts).encode()})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
