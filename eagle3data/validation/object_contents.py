"""One object of one array: every chunk's checksum, and whether they are those of its commit.

An object is proven when the checksum over its chunks' checksums is the one in the index part:
then every byte is as it was when its statistics were taken, and taking them again says little.
They are taken again for some samples, which shows an index that never told the truth (numbers
taken on a device from other bytes than were written), and for all samples of an object that is
not proven: damage done with valid checksums is told by what it left.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.index import list_values
from eagle3data.schema.statistics import layer_statistics, stored_faults
from eagle3data.storage import layout
from eagle3data.storage.arrays import chunk_codec
from eagle3data.storage.shard_decoder import ShardDecoder
from eagle3data.storage.shard_encoder import chunks_crc32c
from eagle3data.validation.findings import REPAIR, Finding, reading_advice

_PIECE_BYTES = 8 << 20
"""Verified at a time while the next such piece is on its way from the disk."""


@dataclass(kw_only=True)
class ObjectContents:
    """What reading one object found.

    Attributes:
        findings: what is wrong with it.
        bytes_read: stored bytes of its samples.
        measured: index rows whose statistics were taken again.
        uncompared: hidden samples keep it from being compared with what was committed.
    """

    findings: list[Finding] = field(default_factory=list)
    bytes_read: int = 0
    measured: set[int] = field(default_factory=set)
    uncompared: bool = False


@dataclass(frozen=True, kw_only=True)
class ShardRows:
    """What the check of a shard's objects goes by.

    Attributes:
        shard: its number.
        positions: rows of the data set's index that lie in it.
        hidden: chunks of samples that tombstones hide.
        stated: CRC32C over the chunks' CRC32C of each object, by path, where its part says it.
        to_measure: rows whose statistics are taken again in any case.
    """

    shard: int
    positions: Sequence[int]
    hidden: Sequence[int]
    stated: dict[str, int | None]
    to_measure: Collection[int]


class ObjectCheck:
    """The check of one array's object in one shard."""

    def __init__(
        self, dataset: Dataset, array: str, rows: ShardRows, stopped: threading.Event
    ) -> None:
        """Prepare.

        Args:
            dataset: opened.
            array: a name as in `layout.array_names`.
            rows: what lies in the shard.
            stopped: once set, nobody wants the result any more.
        """
        self._stopped = stopped
        self.dataset = dataset
        self.array = array
        self.rows = rows
        self.layer = layout.layer_of(array)
        self.found = ObjectContents()
        self._axis = dataset.manifest.storage.axis
        self._damaged: set[int] = set()
        self._name = layout.shard_object(array, rows.shard)

    def run(self) -> ObjectContents:
        """Read it all."""
        try:
            self._decoder = self._open()
        except CorruptionError as error:
            for position in self.rows.positions:
                self._add(position, error.kind, _said(error))
            return self.found
        pieces = [piece for position in self.rows.positions for piece in self._pieces(position)]
        for at, (position, chunks) in enumerate(pieces):
            if at + 1 < len(pieces):
                self._decoder.will_read(pieces[at + 1][1])
            self._verify(position, chunks)
        proven = self._is_as_committed()
        for position in self.rows.positions:
            if position in self._damaged or self._stopped.is_set():
                continue
            if self.layer is None:
                self._compare_tokens(position)
            elif not proven or position in self.rows.to_measure:
                self._measure(position, self.layer)
        if not proven and not self.found.findings:
            self._say_changed()
        return self.found

    def _open(self) -> ShardDecoder:
        # Opened anew, and dropped afterwards: a set of many shards is not to stay mapped.
        manifest = self.dataset.manifest
        return ShardDecoder(
            self.dataset.root,
            chunk_codec(manifest, self.array),
            array=self.array,
            shard=self.rows.shard,
            name=self._name,
            chunks=self._axis.chunks_per_shard,
        )

    def _pieces(self, position: int) -> Iterator[tuple[int, range]]:
        offset = int(self.dataset.index["token_offset"][position].as_py())
        length = int(self.dataset.index["length"][position].as_py())
        chunks = self._axis.chunks_of(offset, length)
        if length < 1 or chunks.stop > self._axis.chunks_per_shard:
            self._add(
                position,
                "length_mismatch",
                f"the index gives the sample {length} tokens at {offset}, which no shard of "
                f"{self._axis.shard_tokens} tokens holds.",
            )
            return
        step = max(1, _PIECE_BYTES // chunk_codec(self.dataset.manifest, self.array).raw_bytes)
        for first in range(0, len(chunks), step):
            yield position, chunks[first : first + step]

    def _verify(self, position: int, chunks: range) -> None:
        if position in self._damaged or self._stopped.is_set():
            return
        try:
            self._decoder.verify(chunks, self._sample_id(position))
            entries = self._decoder.index[chunks.start : chunks.stop]
            self.found.bytes_read += int(entries[:, 1].sum())
        except CorruptionError as error:
            self._add(position, error.kind, _said(error))

    def _is_as_committed(self) -> bool:
        """Whether all chunks are those of the commit; for damaged ones, what lies behind them."""
        stated = self.rows.stated.get(self._name)
        if stated is None:
            return False
        checksums = dict(self._decoder.checksums)
        wanted = [*self.rows.hidden, *self._chunks_of_damaged()]
        try:
            for chunk in wanted:
                if chunk not in checksums:
                    checksums[chunk] = self._decoder.stored_checksum(chunk)
        except CorruptionError:
            return False
        return chunks_crc32c(checksums[chunk] for chunk in sorted(checksums)) == stated

    def _chunks_of_damaged(self) -> Iterator[int]:
        for position in self._damaged:
            offset = int(self.dataset.index["token_offset"][position].as_py())
            length = int(self.dataset.index["length"][position].as_py())
            chunks = self._axis.chunks_of(offset, length)
            yield from (chunk for chunk in chunks if chunk < self._axis.chunks_per_shard)

    def _say_changed(self) -> None:
        if self.rows.stated.get(self._name) is None:
            return  # nothing to compare with; every sample was looked at one by one
        if self.rows.hidden:
            self.found.uncompared = True
            return
        self.found.findings.append(
            Finding(
                kind="object_changed",
                detail=f"{self._name} holds whole chunks, but not those that were committed.",
                shard=self.rows.shard,
                layer=self.layer,
                advice=REPAIR,
            )
        )

    def _compare_tokens(self, position: int) -> None:
        listed = list_values(self.dataset.index[self.array], position)
        codec = chunk_codec(self.dataset.manifest, self.array)
        stored = np.empty(int(self.dataset.index["length"][position].as_py()), codec.dtype)
        if not self._read(position, stored) or np.array_equal(stored, listed):
            return
        both = min(len(stored), len(listed))
        differing = np.flatnonzero(stored[:both] != listed[:both])
        first = int(differing[0]) if len(differing) else both
        self._add(
            position,
            "tokens_differ",
            f"the shard's {self.array} differ from the index's from token {first} on.",
            token_range=(first, max(len(stored), len(listed))),
        )

    def _measure(self, position: int, layer: int) -> None:
        length = int(self.dataset.index["length"][position].as_py())
        codec = chunk_codec(self.dataset.manifest, self.array)
        states = np.empty((length, *codec.shape[1:]), codec.dtype)
        if not self._read(position, states):
            return
        self.found.measured.add(position)
        stated = self.dataset.stated_statistics(position, layer)
        for kind, detail in stored_faults(layer_statistics(states), stated, length):
            self._add(position, kind, detail)

    def _read(self, position: int, out: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bool:
        offset = int(self.dataset.index["token_offset"][position].as_py())
        chunks = self._axis.chunks_of(offset, len(out))
        try:
            self._decoder.read(chunks, out, self._sample_id(position))
        except CorruptionError as error:
            self._add(position, error.kind, _said(error))
            return False
        return True

    def _sample_id(self, position: int) -> str:
        return str(self.dataset.index["sample_id"][position].as_py())

    def _add(
        self, position: int, kind: str, detail: str, token_range: tuple[int, int] | None = None
    ) -> None:
        self._damaged.add(position)
        self.found.findings.append(
            Finding(
                kind=kind,
                detail=detail,
                sample_id=self._sample_id(position),
                shard=self.rows.shard,
                layer=self.layer,
                token_range=token_range,
                advice=reading_advice(kind),
            )
        )


def _said(error: CorruptionError) -> str:
    """The error without what the finding says of the place; a chunk it doesn't."""
    message = f"{error.args[0]}".rstrip(".")
    return f"{message}." if error.chunk is None else f"{message}, in chunk {error.chunk}."
