"""A set whose plan is there before its shards, written one shard at a time."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from unittest.mock import patch

from eagle3data.schema.index import plan_digest, plan_rows
from eagle3data.storage.claims import Claims, shard_name
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root
from eagle3data.writers import shard_writer
from eagle3data.writers.data_set import create_data_set, write_plan
from eagle3data.writers.shard_writer import ShardWriter
from tests.support import random_sample, small_manifest

LENGTH = 100
"""Tokens of every sample; one fills a shard."""


class PlannedSet:
    """So many shards of one sample each."""

    def __init__(self, url: str, shards: int) -> None:
        self.root = Root(url)
        bare = small_manifest()
        names = [f"s{number}" for number in range(shards)]
        table = plan_rows(bare.storage.axis, names, [LENGTH] * shards, [0] * shards)
        digest = plan_digest(bare.identity, table)
        self.manifest = bare.model_copy(update={"plan_digest": digest})
        create_data_set(self.root, self.manifest, shards)
        write_plan(self.root, 0, table, {"digest": digest, "first_shard": 0, "shards": shards})

    def commit(self, shard: int, **facts: object) -> None:
        """Write a shard; `facts` replace what its part says of its writing."""
        with Claims(self.root) as claims:
            claim = claims.acquire(shard_name(shard))
            assert claim is not None
            writer = ShardWriter(self.root, self.manifest, shard, claim)
            offset = shard * self.manifest.storage.shard_tokens
            writer.append(random_sample(f"s{shard}", LENGTH, shard, self.manifest), offset)
            # Not put right afterwards: somebody may be reading.
            said = {**shard_writer._writing(), **facts}
            with patch.object(shard_writer, "_writing", lambda: said):
                writer.commit()

    def claim_elsewhere(self, shard: int, *, beat: int = 0, age: float = 0.0) -> None:
        """A claim of a process on another machine, renewed so many seconds ago."""
        owner = replace(Owner.current(), host="elsewhere", boot="0" * 32)
        self._claim(shard, owner, beat, age)

    def claim_of_the_dead(self, shard: int) -> None:
        """A claim of a process of this machine that has ended."""
        self._claim(shard, replace(Owner.current(), started=1), 0, 0.0)

    def _claim(self, shard: int, owner: Owner, beat: int, age: float) -> None:
        then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        document = {"owner": owner.as_dict(), "beat": beat, "renewed_at": then.isoformat()}
        self.root.replace(f"claims/{shard_name(shard)}.0", json.dumps(document).encode())


def at(seconds: float) -> str:
    """A `written_at` so many seconds after an arbitrary moment."""
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return (moment + datetime.timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
