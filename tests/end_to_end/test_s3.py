"""The same data set in a real S3 server on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3data import open_dataset
from eagle3data.schema.errors import AlreadyExistsError, CorruptionError
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from tests.support import Command, random_samples, same_sample, small_manifest, write_set


def test_write_read_and_exclusive_creation(bucket: str) -> None:
    manifest = small_manifest()
    samples = random_samples(20, manifest)
    url = write_set(f"{bucket}/written", samples, manifest)
    dataset = open_dataset(url)
    assert all(same_sample(dataset.get(sample.sample_id), sample) for sample in samples)
    root = Root(url)
    part = root.read(layout.index_part(0))
    with pytest.raises(AlreadyExistsError):
        root.create(layout.index_part(0), [b"other"])
    assert root.read(layout.index_part(0)) == part


def test_a_missing_object_is_named(bucket: str) -> None:
    manifest = small_manifest()
    url = write_set(f"{bucket}/broken", random_samples(5, manifest), manifest)
    gone = layout.shard_object(layout.states_array(2), 0)
    Root(url).delete(gone)
    with pytest.raises(CorruptionError, match="object_missing"):
        open_dataset(url)[0]


def test_extract_to_s3_and_look(
    bucket: str, smollm2: Path, prompts: Path, states: str, command: Command
) -> None:
    url = f"{bucket}/extracted"
    done = command("extract", prompts, "--model", smollm2, "--out", url)
    assert done.returncode == 0, done.stderr
    remote, local = open_dataset(url), open_dataset(states)
    assert remote.index.equals(local.index)
    assert same_sample(remote[3], local[3])
    again = command("extract", prompts, "--model", smollm2, "--out", url)
    assert "Nothing to do" in again.stdout
    assert command("validate", url, "--level", "full").returncode == 0
