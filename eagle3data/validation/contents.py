"""Level `full`: every chunk and checksum read, and every number compared with the index.

Each object is then compared with what its writer recorded, by the checksum over its chunks'
checksums: chunks that are whole but of another attempt, or written again since, show there. The
chunks of hidden samples count by the checksums that lie behind them; they may be damaged, so in a
shard with hidden samples another sum proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.index import list_values
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.shard_encoder import chunks_crc32c
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.part_facts import stated_objects
from eagle3data.writers.statistics import LayerStatistics, layer_statistics


@dataclass(kw_only=True)
class Contents:
    """What reading everything found."""

    findings: list[Finding] = field(default_factory=list)
    samples: int = 0
    tokens: int = 0
    bytes_read: int = 0
    uncompared: list[int] = field(default_factory=list)
    """Shards whose hidden samples keep them from being compared with what was committed."""


def check_contents(dataset: Dataset, advance: Callable[[int], None]) -> Contents:
    """Read every byte of the data set's samples.

    Args:
        dataset: opened.
        advance: called with the number of samples done since the last call.
    """
    total = Contents(samples=len(dataset), tokens=dataset.tokens)
    span = dataset.manifest.storage.shard_tokens
    shards: dict[int, list[int]] = {}
    for position, offset in enumerate(dataset.index["token_offset"].to_numpy()):
        shards.setdefault(int(offset) // span, []).append(position)

    def check(shard: int) -> _ShardCheck:
        checker = _ShardCheck(dataset, shard)
        checker.run(shards[shard])
        return checker

    # Reading, CRC32C and numpy release the GIL; more threads than this wait for memory.
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for done in pool.map(check, shards):
            total.findings += done.findings
            total.bytes_read += done.bytes_read
            total.uncompared += [done.shard] if done.uncompared else []
            advance(len(shards[done.shard]))
    return total


class _ShardCheck:
    """The samples of one shard."""

    def __init__(self, dataset: Dataset, shard: int) -> None:
        self.dataset = dataset
        self.manifest: Manifest = dataset.manifest
        self.shard = shard
        self.findings: list[Finding] = []
        self.bytes_read = 0
        self.uncompared = False

    def run(self, positions: list[int]) -> None:
        for position in positions:
            for array in layout.array_names(self.manifest):
                self.findings += self._sample(array, position)
        if not self.findings:
            self.findings += self._objects(set(positions))

    def _objects(self, positions: set[int]) -> Iterator[Finding]:
        """Objects whose chunks are whole but are not those that the index part was written for."""
        try:
            table, facts = layout.read_table(self.dataset.root, layout.index_part(self.shard))
        except CorruptionError:
            return  # `quick`, which always runs first, names a part that can't be read
        stated = stated_objects(facts)
        hidden = self._hidden_chunks(table, positions)
        for array in layout.array_names(self.manifest):
            path = layout.shard_object(array, self.shard)
            reader = self.dataset.shard_reader(array, self.shard)
            try:
                behind = {chunk: reader.stored_checksum(chunk) for chunk in hidden}
            except CorruptionError:
                behind = {}
            checksums = reader.checksums | behind
            found = chunks_crc32c(checksums[chunk] for chunk in sorted(checksums))
            if stated.get(path, {}).get("chunks_crc32c") in (found, None):
                continue
            if hidden:
                self.uncompared = True
            else:
                yield Finding(
                    kind="object_changed",
                    detail=f"{path} holds whole chunks, but not those that were committed.",
                    shard=self.shard,
                    layer=layout.layer_of(array),
                    advice=REPAIR,
                )

    def _hidden_chunks(self, table: pa.Table, positions: set[int]) -> list[int]:
        visible = {int(self.dataset.index["token_offset"][row].as_py()) for row in positions}
        axis = self.manifest.storage.axis
        places = zip(
            *(table[name].to_numpy().tolist() for name in ("token_offset", "length")), strict=True
        )
        return [
            chunk
            for offset, length in places
            if offset not in visible
            for chunk in axis.chunks_of(offset, length)
            if chunk < axis.chunks_per_shard
        ]

    def _sample(self, array: str, position: int) -> Iterator[Finding]:
        sample_id = str(self.dataset.index["sample_id"][position].as_py())
        layer = layout.layer_of(array)
        try:
            values = self.dataset.read_array(array, position)
            self.bytes_read += values.nbytes
        except CorruptionError as error:
            yield Finding(
                kind=error.kind,
                detail=str(error),
                sample_id=sample_id,
                shard=self.shard,
                layer=layer,
                advice=REPAIR,
            )
            return
        if layer is None:
            yield from self._tokens(array, position, sample_id, values.tolist())
            return
        found = layer_statistics(values)
        stated = self._stated(position, layer)
        for kind, detail in _faults(found, stated, len(values)):
            yield Finding(
                kind=kind,
                detail=detail,
                sample_id=sample_id,
                shard=self.shard,
                layer=layer,
                advice=REPAIR,
            )

    def _tokens(
        self, array: str, position: int, sample_id: str, stored: list[int]
    ) -> Iterator[Finding]:
        listed = list_values(self.dataset.index[array], position).tolist()
        if stored == listed:
            return
        first = next(
            (at for at, (a, b) in enumerate(zip(stored, listed, strict=False)) if a != b),
            min(len(stored), len(listed)),
        )
        yield Finding(
            kind="tokens_differ",
            detail=f"the shard's {array} differ from the index's from token {first} on.",
            sample_id=sample_id,
            shard=self.shard,
            token_range=(first, max(len(stored), len(listed))),
            advice=REPAIR,
        )

    def _stated(self, position: int, layer: int) -> LayerStatistics | None:
        """What the index says of the layer; None where its lists are not one value a layer."""
        column = self.manifest.layers.index(layer)
        values = {}
        for name in LayerStatistics.__dataclass_fields__:
            row = self.dataset.index[name][position].as_py()
            if len(row) != len(self.manifest.layers):
                return None
            values[name] = row[column]
        return LayerStatistics(**values)


def _faults(
    found: LayerStatistics, stated: LayerStatistics | None, rows: int
) -> Iterator[tuple[str, str]]:
    if found.n_nan:
        yield "nonfinite", f"{found.n_nan} NaN values are stored."
    if found.n_inf:
        yield "saturated", f"{found.n_inf} infinite values are stored."
    if found.n_zero_rows:
        yield "all_zero", f"{found.n_zero_rows} of {rows} rows are all zero; a real state never is."
    if found.n_nan or found.n_inf or found.n_zero_rows or stated is None:
        return
    difference = found.difference(stated)
    if difference is not None:
        yield "object_changed", difference
