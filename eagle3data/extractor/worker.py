"""One worker of an extraction: claims a shard, runs its prompts, hands the states on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data.extractor.alignment import AlignmentWatch
from eagle3data.extractor.engines.base import Captured, Engine, Request
from eagle3data.extractor.plan import Plan
from eagle3data.extractor.preflight import Preflight
from eagle3data.extractor.prompts import PromptsFile
from eagle3data.extractor.work import Assignment, Work
from eagle3data.schema.errors import (
    AlreadyExistsError,
    CorruptionError,
    LostClaimError,
    SampleError,
)
from eagle3data.schema.index import list_values
from eagle3data.schema.sample import Sample
from eagle3data.schema.statistics import LayerStatistics
from eagle3data.storage.claims import Claim, Claims
from eagle3data.storage.ledger import record_failure
from eagle3data.storage.root import Root
from eagle3data.writers.shard_writer import ShardWriter
from eagle3data.writers.shared_shards import OnWait, SharedShards
from eagle3data.writers.write_queue import WriteQueue

QUEUE_BYTES = 1 << 30
"""States that may wait for the disk; an engine that computes is slowed beyond that."""
IMPORT_QUEUE_BYTES = 64 << 20
"""What only reads is ahead of the disk always; more than keeps the writers busy is no use."""
_SAMPLES_AT_ONCE = 8
_CORES_A_SAMPLE = 4

OnTokens = Callable[[int, int], None]


@dataclass
class _OpenShard:
    """A shard that is being filled.

    Attributes:
        outstanding: places of the samples that the engine has not returned, by sample id.
        unwritten: samples that are not written yet, or refused.
    """

    claim: Claim
    writer: ShardWriter
    outstanding: dict[str, Assignment]
    unwritten: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count_down(self) -> bool:
        """One more is written; whether it was the last."""
        with self.lock:
            self.unwritten -= 1
            return self.unwritten == 0


class Worker:
    """Takes shard after shard until every one that is wanted is committed, by whomever.

    The engine draws requests ahead, so several shards are open at once, and several samples are
    written at once; whoever writes a shard's last one commits it.
    """

    def __init__(
        self,
        root: Root,
        plan: Plan,
        prompts: PromptsFile,
        work: Work,
        claims: Claims,
        preflight: Preflight,
        alignment: AlignmentWatch | None,
        on_tokens: OnTokens,
        on_wait: OnWait,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """Take no shard yet; `on_tokens` and `on_wait` as in `extract`.

        At most `queue_bytes` of states wait to be written.

        Without `alignment` nothing stops at states of other tokens: what is imported is taken in
        as it is, and judged by `validate`.
        """
        self._preflight, self._alignment = preflight, alignment
        self._root, self._plan, self._prompts, self._work = root, plan, prompts, work
        self._claims, self._queue_bytes = claims, queue_bytes
        self._on_tokens, self._on_wait = on_tokens, on_wait
        cores = os.cpu_count() or 1
        self._at_once = max(2, min(_SAMPLES_AT_ONCE, cores // _CORES_A_SAMPLE))
        self._open: dict[int, _OpenShard] = {}
        self._written = 0

    def run(self, wanted: list[int], load_engine: Callable[[], Engine]) -> int:
        """Do what is missing of the wanted shards; how many this worker committed."""
        queue = WriteQueue(self._queue_bytes, self._at_once)
        self._shards = SharedShards(self._root, self._claims, wanted, self._on_wait)
        try:
            groups = self._groups(queue)
            first = next(filter(None, groups), None)
            if first is not None:
                self._extract(load_engine(), chain([first], groups), queue)
            queue.drain()
        finally:
            queue.close()
            for shard in self._open.values():
                shard.writer.abort()
        return self._written

    def _extract(
        self, engine: Engine, groups: Iterator[list[Request] | None], queue: WriteQueue
    ) -> None:
        """Run what is drawn from `groups`; checking, encoding and writing happen in the queue."""
        try:
            for captured in engine.capture(groups):
                self._take(captured, queue)
        finally:
            engine.close()
        self._require_all_returned()

    def _require_all_returned(self) -> None:
        for number, shard in list(self._open.items()):
            if shard.outstanding:
                raise CorruptionError(
                    "length_mismatch",
                    f"the engine returned nothing for {len(shard.outstanding)} requests",
                    url=self._root.url,
                    shard=number,
                    sample_id=min(shard.outstanding),
                )

    def _groups(self, queue: WriteQueue) -> Iterator[list[Request] | None]:
        """The requests of one claimed shard after another; None before a wait for others."""
        for claim in self._shards.take():
            if claim is not None:
                yield self._begin(claim)
                continue
            yield None
            # All that is ours is in the queue now; the wait begins once it is done. What the
            # engine has lost would be waited for as if another worker had it.
            self._require_all_returned()
            queue.drain()

    def _begin(self, claim: Claim) -> list[Request]:
        number = int(claim.name)
        names = self._plan.table["sample_id"]
        places = {str(names[place.row].as_py()): place for place in self._work.shards[number]}
        manifest = self._plan.manifest
        writer = ShardWriter(self._root, manifest, number, claim, threads=_CORES_A_SAMPLE)
        self._open[number] = _OpenShard(claim, writer, places, len(places))
        ids, sources = (self._prompts.table[name] for name in ("input_ids", "source"))
        return [
            Request(
                sample_id=name,
                shard=number,
                input_ids=list_values(ids, place.row),
                source=sources[place.row].as_py(),
            )
            for name, place in places.items()
        ]

    def _take(self, captured: Captured, queue: WriteQueue) -> None:
        number = captured.request.shard
        shard = self._open[number]
        place = shard.outstanding.pop(captured.request.sample_id)
        nbytes = sum(states.nbytes for states in captured.hidden_states.values())
        queue.submit(partial(self._append, shard, place, captured), nbytes)
        self._on_tokens(len(captured.request.input_ids), number)

    def _append(self, shard: _OpenShard, place: Assignment, captured: Captured) -> None:
        try:
            if captured.problem is not None:
                raise captured.problem
            sample = _sample(self._prompts.table, place.row, captured)
            shard.writer.append(
                sample,
                place.token_offset,
                statistics=captured.statistics,
                check=partial(self._see, shard.writer.shard, sample),
            )
        except SampleError as error:
            self._preflight.refuse(error)
            record_failure(
                self._root,
                shard=shard.writer.shard,
                sample_id=error.sample_id,
                kind=error.kind,
                reason=str(error),
            )
        finally:
            captured.release()
        if shard.count_down():
            self._commit(shard)

    def _see(self, shard: int, sample: Sample, statistics: Mapping[int, LayerStatistics]) -> None:
        self._preflight.see(statistics)
        if self._alignment is not None:
            self._alignment.see(sample, shard)

    def _commit(self, shard: _OpenShard) -> None:
        self._preflight.require()
        if self._alignment is not None:
            self._alignment.require(shard.writer.shard)
        try:
            shard.writer.commit()
            self._written += 1
        except (AlreadyExistsError, LostClaimError):
            # Another worker took this one for dead. The set is whole either way: a shard that is
            # not committed when it is looked at next is done again.
            pass
        finally:
            del self._open[shard.writer.shard]
            self._shards.give_back(shard.claim)


def _sample(table: pa.Table, row: int, captured: Captured) -> Sample:
    values: dict[str, Any] = {
        name: table[name][row].as_py() for name in ("source", "split", "source_extra")
    }
    return Sample(
        hidden_states=captured.hidden_states,
        input_ids=list_values(table["input_ids"], row),
        loss_mask=list_values(table["loss_mask"], row).astype(np.uint8),
        sample_id=captured.request.sample_id,
        source=values["source"],
        split=values["split"],
        source_extra=dict(values["source_extra"] or {}),
        witness_token=captured.witness_token,
        witness_logprob=captured.witness_logprob,
    )
