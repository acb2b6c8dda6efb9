"""The copy that is a new data set: samples read, checked, and written in shards of its own.

Its plan is made first and depends on the sources and the choices alone, so the copy is a job of
shards like an extraction: run again it continues, and several processes share it.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from eagle3data.readers.card import write_card
from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.readers.index import read_index
from eagle3data.schema.axis import choose_axis
from eagle3data.schema.errors import (
    AlreadyExistsError,
    CorruptionError,
    LostClaimError,
    MismatchError,
    SampleError,
)
from eagle3data.schema.index import plan_digest, plan_rows
from eagle3data.schema.manifest import Codec
from eagle3data.schema.sample import Sample
from eagle3data.schema.statistics import LayerStatistics
from eagle3data.storage import layout
from eagle3data.storage.claims import Claim, Claims
from eagle3data.storage.ledger import read_ledger, record_failure
from eagle3data.storage.root import Root
from eagle3data.transfer.job import CopyReport, OnBytes, Preview, free_bytes, require_space
from eagle3data.transfer.selection import Picked, Selection
from eagle3data.writers.data_set import consolidate_index, create_data_set, write_plan
from eagle3data.writers.shard_writer import ShardWriter
from eagle3data.writers.shared_shards import OnWait, SharedShards, missing_shards
from eagle3data.writers.write_queue import WriteQueue

_QUEUE_BYTES = 256 << 20
"""States that were read and wait for the encoder; a few samples."""
_SHARDS_AT_ONCE = 4
"""Small shards would all be claimed at once, and other processes had nothing to do."""
_ORIGIN = "copy"


class Rewrite:
    """Writes selected samples into a new data set."""

    def __init__(
        self,
        selection: Selection,
        target: Root,
        *,
        codec: Codec | None,
        where: str | None,
        skip_damaged: bool,
    ) -> None:
        """Plan the copy, and compare it with what is at the target; writes nothing.

        Args:
            selection: what to copy.
            target: where to.
            codec: of the copy; the first source's by default.
            where: what selected the samples, for the copy's provenance.
            skip_damaged: put samples that can't be read in the copy's ledger, and go on.

        Raises:
            MismatchError: the target holds something else than this copy.
        """
        self._selection, self._target = selection, target
        self._skip_damaged = skip_damaged
        draft = selection.manifest
        axis = choose_axis(selection.lengths, draft.row_bytes)
        storage = draft.storage.model_copy(
            update={
                "codec": codec or draft.storage.codec,
                "shard_tokens": axis.shard_tokens,
                "chunk_tokens": axis.chunk_tokens,
            }
        )
        draft = draft.model_copy(update={"storage": storage, "plan_digest": None})
        self._plan = plan_rows(axis, selection.sample_ids, selection.lengths, selection.checksums)
        generations = " ".join(source.generation for source in selection.sources)
        digest = plan_digest(f"{draft.identity}:{generations}", self._plan)
        self._origin = _origin(selection, where)
        self.manifest = draft.model_copy(
            update={"plan_digest": digest, "provenance": self._provenance()}
        )
        self._shards: dict[int, list[tuple[Picked, int]]] = {}
        offsets = self._plan["token_offset"].to_numpy().tolist()
        for picked, offset in zip(selection.samples, offsets, strict=True):
            self._shards.setdefault(axis.shard_of(offset), []).append((picked, offset))
        if target.exists(layout.GROUP):
            self._require_same()
        self.preview = self._preview()

    def run(self, on_bytes: OnBytes, on_wait: OnWait) -> CopyReport:
        """Write what is missing; see `CopyJob.run`."""
        target = self._target
        require_space(target, self.preview)
        with Claims(target) as claims:
            create_data_set(target, self.manifest, len(self._shards))
            facts = {
                "digest": self.manifest.plan_digest,
                "first_shard": 0,
                "shards": len(self._shards),
            }
            write_plan(target, 0, self._plan, facts)
            target.sweep()
            shared = SharedShards(target, claims, list(self._shards), on_wait)
            written = _Writing(self, shared, on_bytes).run()
            consolidate_index(target)
        write_card(open_dataset(target.url))
        target.sweep()
        found = read_index(target)
        return CopyReport(
            samples=found.rows.num_rows,
            tokens=int(found.rows["length"].to_numpy().sum()),
            shards=len(layout.committed_shards(target)),
            written=written,
            # A shard that was begun twice has recorded its failures twice.
            failed=len({row["sample_id"] for row in read_ledger(target)}),
            generation=found.generation,
        )

    def places(self, shard: int) -> list[tuple[Picked, int]]:
        """The samples of a shard of the copy, with their token offsets."""
        return self._shards[shard]

    def open_shard(self, claim: Claim) -> ShardWriter:
        """Begin a shard of the copy."""
        return ShardWriter(self._target, self.manifest, int(claim.name), claim)

    def read(self, picked: Picked) -> Sample:
        """A sample as its source has it.

        Raises:
            CorruptionError: it is not what was written.
        """
        source = self._selection.sources[picked.source]
        return source.read(picked.position, self.manifest.layers)

    def append(self, writer: ShardWriter, picked: Picked, sample: Sample, offset: int) -> None:
        """Write a sample whose states are those that the source's index describes."""
        source = self._selection.sources[picked.source]
        try:
            writer.append(
                sample, offset, check=partial(_require_stated, source, picked.position, sample)
            )
        except (CorruptionError, SampleError) as error:
            self.refuse(writer.shard, picked, error)

    def refuse(self, shard: int, picked: Picked, error: CorruptionError | SampleError) -> None:
        """Put a damaged sample in the ledger.

        Raises:
            CorruptionError, SampleError: the error, where damaged samples are not skipped.
        """
        if not self._skip_damaged:
            raise error
        source = self._selection.sources[picked.source]
        sample_id = str(source.index["sample_id"][picked.position].as_py())
        record_failure(
            self._target, shard=shard, sample_id=sample_id, kind=error.kind, reason=str(error)
        )

    def _preview(self) -> Preview:
        missing = missing_shards(self._target, list(self._shards))
        left = np.isin(self._plan["shard"].to_numpy(), missing)
        sizes = self.manifest.size_arithmetic(self._plan["length"].to_numpy()[left].tolist())
        return Preview(
            byte_for_byte=False,
            samples=len(self._selection.samples),
            tokens=sum(self._selection.lengths),
            shards=len(self._shards),
            missing=len(missing),
            nbytes=sizes.stored_bytes(self.manifest.storage.codec),
            work_bytes=sizes.state_bytes,
            free_bytes=free_bytes(self._target),
            dropped=self._selection.dropped,
            duplicates=self._selection.duplicates,
        )

    def _provenance(self) -> dict[str, str]:
        sources = [
            {"url": source.url, "provenance": source.manifest.provenance}
            for source in self._selection.sources
        ]
        return {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "eagle3data": version("eagle3data"),
            "copied_from": json.dumps(sources),
            _ORIGIN: json.dumps(self._origin),
        }

    def _require_same(self) -> None:
        there = layout.read_manifest(self._target)
        differences = there.differences(self.manifest)
        if not differences:
            return
        if _ORIGIN in there.provenance:
            found = json.loads(there.provenance[_ORIGIN])
            differences = [
                f"{name}: {found.get(name)}, {value}"
                for name, value in self._origin.items()
                if found.get(name) != value
            ] + [difference for difference in differences if not difference.startswith("plan_")]
        raise MismatchError(
            f"{self._target.url} holds something else than this copy; it was left as it is. There "
            f"and here differ in {'; '.join(differences)}. Use the sources and options of the "
            "first run, or another place."
        )


class _Writing:
    """One process's share of a copy: reads in this thread, encodes and writes in another."""

    def __init__(self, copy: Rewrite, shared: SharedShards, on_bytes: OnBytes) -> None:
        self._copy, self._shared, self._on_bytes = copy, shared, on_bytes
        self._writers: list[ShardWriter] = []
        self._written = 0

    def run(self) -> int:
        """Do shards until none is left; how many this process committed."""
        queue = WriteQueue(_QUEUE_BYTES)
        try:
            for claim in self._shared.take():
                if claim is not None:
                    self._begin(claim, queue)
                if claim is None or len(self._writers) >= _SHARDS_AT_ONCE:
                    queue.drain()
            queue.drain()
        finally:
            queue.close()
            for writer in self._writers:
                writer.abort()
        return self._written

    def _begin(self, claim: Claim, queue: WriteQueue) -> None:
        writer = self._copy.open_shard(claim)
        self._writers.append(writer)
        for picked, offset in self._copy.places(writer.shard):
            try:
                sample = self._copy.read(picked)
            except CorruptionError as error:
                self._copy.refuse(writer.shard, picked, error)
                continue
            nbytes = sum(states.nbytes for states in sample.hidden_states.values())
            queue.submit(partial(self._append, writer, picked, sample, offset, nbytes), nbytes)
        queue.submit(partial(self._commit, writer, claim))

    def _append(
        self, writer: ShardWriter, picked: Picked, sample: Sample, offset: int, nbytes: int
    ) -> None:
        self._copy.append(writer, picked, sample, offset)
        self._on_bytes(nbytes)

    def _commit(self, writer: ShardWriter, claim: Claim) -> None:
        try:
            writer.commit()
            self._written += 1
        except (AlreadyExistsError, LostClaimError):
            # Another process took this one for dead and does the same shard.
            pass
        self._writers.remove(writer)
        self._shared.give_back(claim)


def _require_stated(
    source: Dataset, position: int, sample: Sample, found: Mapping[int, LayerStatistics]
) -> None:
    """Compare what was read with what the source's index says: whole chunks can be others.

    Raises:
        CorruptionError: naming the layer.
    """
    names = list(LayerStatistics.__dataclass_fields__)
    rows = [source.index[name][position].as_py() for name in names]
    for layer, measured in found.items():
        slot = source.manifest.layers.index(layer)
        stated = LayerStatistics(**{name: row[slot] for name, row in zip(names, rows, strict=True)})
        difference = measured.difference(stated)
        if difference is not None:
            raise CorruptionError(
                "object_changed",
                difference,
                url=source.url,
                array=layout.states_array(layer),
                sample_id=sample.sample_id,
            )


def _origin(selection: Selection, where: str | None) -> dict[str, Any]:
    """What two runs of one copy agree in; without the ids of what was left out."""
    return {
        "sources": [source.generation for source in selection.sources],
        "where": where,
        "samples": len(selection.samples),
        "dropped": selection.dropped,
        "duplicates": selection.duplicates,
    }
