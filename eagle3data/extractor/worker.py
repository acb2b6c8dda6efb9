"""One worker of an extraction: claims a shard, runs its prompts, hands the states on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data.extractor.engines.base import Captured, Engine, Request
from eagle3data.extractor.plan import Plan
from eagle3data.extractor.prompts import PromptsFile
from eagle3data.extractor.work import Work
from eagle3data.schema.errors import (
    AlreadyExistsError,
    CorruptionError,
    LostClaimError,
    SampleError,
)
from eagle3data.schema.index import list_values
from eagle3data.schema.sample import Sample
from eagle3data.storage.claims import Claim, Claims
from eagle3data.storage.ledger import record_failure
from eagle3data.storage.root import Root
from eagle3data.writers.shard_writer import ShardWriter
from eagle3data.writers.shared_shards import OnWait, SharedShards
from eagle3data.writers.write_queue import WriteQueue

_QUEUE_BYTES = 1 << 30
"""States that may wait for the disk; the engine is slowed beyond that."""

OnTokens = Callable[[int, int], None]


class Worker:
    """Takes shard after shard until every one that is wanted is committed, by whomever."""

    def __init__(
        self,
        root: Root,
        plan: Plan,
        prompts: PromptsFile,
        work: Work,
        claims: Claims,
        on_tokens: OnTokens,
        on_wait: OnWait,
    ) -> None:
        """Take no shard yet; `on_tokens` and `on_wait` as in `extract`."""
        self._root, self._plan, self._prompts, self._work = root, plan, prompts, work
        self._claims = claims
        self._on_tokens, self._on_wait = on_tokens, on_wait
        self._writers: list[ShardWriter] = []
        self._written = 0

    def run(self, wanted: list[int], load_engine: Callable[[], Engine]) -> int:
        """Do what is missing of the wanted shards; how many this worker committed."""
        engine: Engine | None = None
        queue = WriteQueue(_QUEUE_BYTES)
        self._shards = SharedShards(self._root, self._claims, wanted, self._on_wait)
        try:
            for claim in self._shards.take(before_waiting=queue.drain):
                engine = engine or load_engine()
                self._extract(engine, claim, queue)
            queue.drain()
        finally:
            queue.close()
            for writer in self._writers:
                writer.abort()
        return self._written

    def _extract(self, engine: Engine, claim: Claim, queue: WriteQueue) -> None:
        """Run one shard's prompts; checking, encoding and writing happen in the queue's thread."""
        shard = int(claim.name)
        names = self._plan.table["sample_id"]
        places = {str(names[place.row].as_py()): place for place in self._work.shards[shard]}
        requests = [
            Request(sample_id=name, input_ids=list_values(self._prompts.table["input_ids"], at.row))
            for name, at in places.items()
        ]
        writer = ShardWriter(self._root, self._plan.manifest, shard, claim)
        self._writers.append(writer)
        outstanding = set(places)
        for captured in engine.capture(requests):
            outstanding.discard(captured.sample_id)
            place = places[captured.sample_id]
            sample = _sample(self._prompts.table, place.row, captured)
            nbytes = sum(states.nbytes for states in sample.hidden_states.values())
            queue.submit(partial(self._append, writer, sample, place.token_offset), nbytes)
            self._on_tokens(len(sample), shard)
        if outstanding:
            raise CorruptionError(
                "length_mismatch",
                f"the engine returned nothing for {len(outstanding)} of {len(places)} requests",
                url=self._root.url,
                shard=shard,
                sample_id=min(outstanding),
            )
        queue.submit(partial(self._commit, writer, claim))

    def _append(self, writer: ShardWriter, sample: Sample, token_offset: int) -> None:
        try:
            writer.append(sample, token_offset)
        except SampleError as error:
            record_failure(
                self._root,
                shard=writer.shard,
                sample_id=error.sample_id,
                kind=error.kind,
                reason=str(error),
            )

    def _commit(self, writer: ShardWriter, claim: Claim) -> None:
        try:
            writer.commit()
            self._written += 1
        except (AlreadyExistsError, LostClaimError):
            # Another worker took this one for dead. The set is whole either way: a shard that is
            # not committed when it is looked at next is done again.
            pass
        finally:
            self._writers.remove(writer)
            self._shards.give_back(claim)


def _sample(table: pa.Table, row: int, captured: Captured) -> Sample:
    values: dict[str, Any] = {
        name: table[name][row].as_py() for name in ("source", "split", "source_extra")
    }
    return Sample(
        hidden_states=captured.hidden_states,
        input_ids=list_values(table["input_ids"], row),
        loss_mask=list_values(table["loss_mask"], row).astype(np.uint8),
        sample_id=captured.sample_id,
        source=values["source"],
        split=values["split"],
        source_extra=dict(values["source_extra"] or {}),
        witness_token=captured.witness_token,
        witness_logprob=captured.witness_logprob,
    )
