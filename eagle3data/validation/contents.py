"""Level `full`: every checksum of every object, at the disk's speed, on all cores.

Each object is then compared with what its writer recorded, by the checksum over its chunks'
checksums: chunks that are whole but of another attempt, or written again since, show there. The
chunks of hidden samples count by the checksums that lie behind them; they may be damaged, so in a
shard with hidden samples another sum proves nothing.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.digest import bytes_digest
from eagle3data.schema.errors import CorruptionError
from eagle3data.storage import layout
from eagle3data.validation.findings import Finding
from eagle3data.validation.object_contents import ObjectCheck, ObjectContents, ShardRows
from eagle3data.validation.part_facts import stated_objects
from eagle3data.validation.progress_file import ProgressFile, ShardResult, shard_key

MEASURED_BYTES = 256_000_000
"""Statistics are taken again over so many bytes of states, or all of a smaller set."""
MEASURED_SHARE = 1 / 64
"""But over this share of a large set."""

Objects = Mapping[int, Mapping[str, Mapping[str, Any]]]
"""By shard and path, what an index part says of an object: `bytes`, `crc32c`, `chunks_crc32c`."""


@dataclass(kw_only=True)
class Contents:
    """What reading everything found.

    Attributes:
        findings: what is wrong.
        bytes_read: stored bytes of samples.
        measured: samples whose statistics were taken again.
        uncompared: shards whose hidden samples keep them from being compared with what was
            committed.
        recalled: shards that an earlier run, which was interrupted, had read.
    """

    findings: list[Finding] = field(default_factory=list)
    bytes_read: int = 0
    measured: int = 0
    uncompared: list[int] = field(default_factory=list)
    recalled: int = 0


def stored_bytes(dataset: Dataset, objects: Objects) -> int:
    """Bytes of the objects that `check_contents` reads, as their parts say."""
    return sum(
        int(entry["bytes"])
        for shard in _positions(dataset)
        for entry in objects.get(shard, {}).values()
    )


def check_contents(
    dataset: Dataset,
    objects: Objects,
    advance: Callable[[int], None],
    record: ProgressFile | None = None,
) -> Contents:
    """Read every byte of the data set's samples.

    Args:
        dataset: opened.
        objects: what the index parts say of their objects.
        advance: called with the bytes of objects done since the last call.
        record: what earlier runs read, and where this one notes what it reads.
    """
    total = Contents()
    run = _Run(dataset, objects, advance)
    found = {shard: (result, recalled) for shard, result, recalled in run.results(record)}
    for shard, (result, recalled) in sorted(found.items()):
        total.findings += result.findings
        total.bytes_read += result.bytes_read
        total.measured += result.measured
        total.uncompared += [shard] if result.uncompared else []
        total.recalled += recalled
    return total


def _positions(dataset: Dataset) -> dict[int, list[int]]:
    """Index rows of each shard that has any."""
    span = dataset.manifest.storage.shard_tokens
    shards: dict[int, list[int]] = {}
    for position, offset in enumerate(dataset.index["token_offset"].to_numpy()):
        shards.setdefault(int(offset) // span, []).append(position)
    return shards


def choose_measured(dataset: Dataset) -> set[int]:
    """Rows whose statistics are taken again: evenly spread, the same every time."""
    manifest = dataset.manifest
    nbytes = dataset.tokens * len(manifest.layers) * manifest.hidden_size * 2
    share = min(1.0, max(MEASURED_SHARE, MEASURED_BYTES / max(nbytes, 1)))
    count = math.ceil(share * len(dataset))
    return {(2 * at + 1) * len(dataset) // (2 * count) for at in range(count)}


class _Run:
    """One run over all shards: objects are shared out to threads, results come when ready."""

    def __init__(self, dataset: Dataset, objects: Objects, advance: Callable[[int], None]) -> None:
        self.dataset = dataset
        self.objects = objects
        self.advance = advance
        self.positions = _positions(dataset)
        self.to_measure = choose_measured(dataset)
        self.arrays = layout.array_names(dataset.manifest)
        self.stopped = threading.Event()
        self.asking = ThreadPoolExecutor(len(self.arrays), "eagle3data-ask")
        # Twice the cores: while one thread of two waits for the disk the other has the core.
        self.threads = max(2 * (os.cpu_count() or 1), dataset.root.threads)

    def results(self, record: ProgressFile | None) -> Iterator[tuple[int, ShardResult, bool]]:
        """Shard, what was found in it, and whether an earlier run had found it."""
        waiting: deque[tuple[int, str, list[Future[ObjectContents]]]] = deque()
        pool = ThreadPoolExecutor(self.threads, "eagle3data-validate")
        try:
            for shard in self.positions:
                rows, part = self._rows(shard)
                key = self._key(shard, part) if record is not None else ""
                known = record.recall(shard, key) if record is not None else None
                if known is not None:
                    self.advance(sum(self._sizes(shard).values()))
                    yield shard, known, True
                    continue
                futures = [pool.submit(self._check, array, rows) for array in self.arrays]
                waiting.append((shard, key, futures))
                if sum(len(futures) for _, _, futures in waiting) > 2 * self.threads:
                    yield self._finished(*waiting.popleft(), record)
            while waiting:
                yield self._finished(*waiting.popleft(), record)
        finally:
            self.stopped.set()
            pool.shutdown(cancel_futures=True)
            self.asking.shutdown()

    def _check(self, array: str, rows: ShardRows) -> ObjectContents:
        return ObjectCheck(self.dataset, array, rows, self.stopped).run()

    def _finished(
        self,
        shard: int,
        key: str,
        futures: list[Future[ObjectContents]],
        record: ProgressFile | None,
    ) -> tuple[int, ShardResult, bool]:
        sizes, done = self._sizes(shard), []
        for array, future in zip(self.arrays, futures, strict=True):
            done.append(future.result())
            self.advance(sizes.pop(layout.shard_object(array, shard), 0))
        self.advance(sum(sizes.values()))
        result = ShardResult(
            findings=[finding for one in done for finding in one.findings],
            bytes_read=sum(one.bytes_read for one in done),
            measured=len(set().union(*(one.measured for one in done))),
            uncompared=any(one.uncompared for one in done),
        )
        if record is not None:
            record.note(shard, key, result)
        return shard, result, False

    def _sizes(self, shard: int) -> dict[str, int]:
        return {path: int(entry["bytes"]) for path, entry in self.objects.get(shard, {}).items()}

    def _key(self, shard: int, part: str) -> str:
        """What tells this state of a shard, whose index part has a digest, from any other."""
        root, column = self.dataset.root, self.dataset.index["sample_id"]
        paths = [layout.shard_object(array, shard) for array in self.arrays]
        return shard_key(
            part,
            [str(column[position].as_py()) for position in self.positions[shard]],
            # Of a store, each is a request.
            [*(map if root.is_local else self.asking.map)(root.identity, paths)],
        )

    def _rows(self, shard: int) -> tuple[ShardRows, str]:
        """What a shard's check goes by, and the digest of its index part."""
        root, positions = self.dataset.root, self.positions[shard]
        hidden: list[int] = []
        stated: dict[str, int | None] = {}
        try:
            data = root.read(layout.index_part(shard))
            table, facts = layout.decode_table(root, layout.index_part(shard), data)
            hidden = self._hidden_chunks(table, positions)
            entries = stated_objects(facts)
            stated = {path: entry.get("chunks_crc32c") for path, entry in entries.items()}
        except (CorruptionError, OSError):
            data = b""  # `quick`, which always runs first, names a part that can't be read
        rows = ShardRows(
            shard=shard,
            positions=positions,
            hidden=hidden,
            stated=stated,
            to_measure=self.to_measure,
        )
        return rows, bytes_digest(data)

    def _hidden_chunks(self, table: pa.Table, positions: list[int]) -> list[int]:
        visible = {int(self.dataset.index["token_offset"][row].as_py()) for row in positions}
        axis = self.dataset.manifest.storage.axis
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
