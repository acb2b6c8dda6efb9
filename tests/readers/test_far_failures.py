"""A store that doesn't answer: the epoch ends with an error, or goes on without the sample."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import boto3
import pytest
from s3fs import S3FileSystem

from eagle3data import StreamingLoader, open_dataset
from eagle3data.schema.errors import CorruptionError
from eagle3data.storage import retry, s3_client
from tests.readers.feeding_set import BUDGET, MANIFEST, SAMPLES
from tests.storage.faulty_proxy import Fault, FaultyProxy
from tests.support import write_set

SOME = dict(list(SAMPLES.items())[:12])
SHARD = "hidden_states/2/c/1/0"
"""One object that answers no more."""

Kind = Literal["refuse", "reset", "hang"]


@pytest.fixture(scope="module")
def far(endpoint: str) -> str:
    """The set in a bucket, written when nothing fails."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            patch.setenv(f"AWS_{name}", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        S3FileSystem.clear_instance_cache()  # they keep the environment that they were made in
        boto3.client("s3").create_bucket(Bucket="failing")
        return write_set("s3://failing/set", list(SOME.values()), MANIFEST)


@pytest.fixture
def proxy(
    far: str, endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyProxy]:
    monkeypatch.setattr(retry, "ATTEMPTS", 2)
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
    with FaultyProxy(endpoint).running() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        S3FileSystem.clear_instance_cache()
        yield proxy
    S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("kind", ["refuse", "reset", pytest.param("hang", marks=pytest.mark.soak)])
def test_an_object_that_does_not_answer(
    far: str, proxy: FaultyProxy, tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "READ_SECONDS", 3 if kind == "hang" else 60)
    dataset = open_dataset(far)
    there = [position for position in range(len(dataset)) if dataset.shard_of(position) == 1]
    settings: dict[str, Any] = {"token_budget": BUDGET, "threads": 4}
    whole = StreamingLoader(dataset, **settings)
    dataset.shard_reader("hidden_states/2", 1)  # opened before it falls silent
    proxy.faults.append(Fault("GET", kind, SHARD, times=10_000))
    with pytest.raises(CorruptionError, match="object_unreadable") as raised:
        list(whole)
    assert (raised.value.array, raised.value.shard) == ("hidden_states/2", 1)
    ledger = tmp_path / "ledger.jsonl"
    skipping = StreamingLoader(dataset, on_error="skip", ledger=ledger, **settings)
    names = [name for batch in skipping for name in batch.sample_ids]
    left_out = {dataset.sample_id(position) for position in there}
    assert sorted(names) == sorted(set(SOME) - left_out)
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert {row["sample_id"] for row in rows} == left_out
    assert {row["kind"] for row in rows} == {"object_unreadable"}
    limited = StreamingLoader(dataset, on_error="skip", max_skipped=len(there) - 1, **settings)
    with pytest.raises(CorruptionError, match="object_unreadable"):
        list(limited)
    assert not [one for one in threading.enumerate() if one.name.startswith("eagle3data-load")]


def test_an_answer_that_was_lost_is_asked_for_again(far: str, proxy: FaultyProxy) -> None:
    loader = StreamingLoader(open_dataset(far), token_budget=BUDGET, threads=4)
    proxy.faults.append(Fault("GET", "reset", SHARD, times=1))
    assert sorted(name for batch in loader for name in batch.sample_ids) == sorted(SOME)
