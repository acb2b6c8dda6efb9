"""Damage, repair, extract again: the set is whole and equal to the undamaged one; on S3 too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import boto3
import numpy as np

from eagle3data import DatasetWriter, Sample, open_dataset
from eagle3data.schema.sample import as_float32
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from eagle3data.validation.repair import repair
from eagle3data.validation.validate import validate
from tests.support import Command, random_samples, same_sample, small_manifest, write_set


def test_damage_repair_extract(
    states: str, smollm2: Path, prompts: Path, tmp_path: Path, command: Command
) -> None:
    url = tmp_path / "set"
    shutil.copytree(states, url)
    path = url / "hidden_states/15/c/1/0"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    (url / "index/00000003.arrow").write_bytes(b"ARROW1")
    assert command("validate", url).returncode == 1
    told = command("repair", url, "--dry-run")
    assert told.returncode == 1, told.stderr
    assert "drop_part" in told.stdout
    done = command("repair", url)
    assert done.returncode == 0, done.stderr
    assert "1 hidden samples and 1 shards" in done.stdout
    again = command("extract", prompts, "--model", smollm2, "--out", url)
    assert again.returncode == 0, again.stderr
    report = command("validate", url, "--json")
    assert report.returncode == 0, report.stdout
    assert json.loads(report.stdout)["hidden"] == 1
    one, other = open_dataset(str(url)), open_dataset(states)
    names = sorted(map(str, other.index["sample_id"].to_pylist()))
    assert sorted(map(str, one.index["sample_id"].to_pylist())) == names
    redone = [name for name in names if not same_sample(one.get(name), other.get(name))]
    # In another batch a bfloat16 run rounds otherwise; every other sample is as it was.
    assert len(redone) <= 1
    assert all(_is_close(one.get(name), other.get(name)) for name in redone)
    assert command("repair", url, "--dry-run").returncode == 0


def _is_close(one: Sample, other: Sample) -> bool:
    """Whether two runs of one sample differ by rounding only: most rows by a few per cent."""
    for layer, states in one.hidden_states.items():
        here, there = as_float32(states), as_float32(other.hidden_states[layer])
        error = np.linalg.norm(here - there, axis=1) / np.linalg.norm(there, axis=1)
        if np.median(error) > 0.05:
            return False
    return np.array_equal(one.input_ids, other.input_ids)


def test_on_s3(bucket: str) -> None:
    manifest = small_manifest()
    samples = random_samples(20, manifest, 60)
    for sample in samples:
        sample.loss_mask[0] = 1
    url = write_set(f"{bucket}/repaired/set", samples, manifest)
    root = Root(url)
    assert repair(url).actions == []
    client = boto3.client("s3")
    for key in ("repaired/set/hidden_states/2/c/99/0", "repaired/set2/other"):
        client.create_multipart_upload(Bucket="states", Key=key)
    root.create("hidden_states/2/c/99/0", [b"x"])
    root.delete(layout.shard_object("hidden_states/6", 0))
    root.replace(layout.index_part(1), b"torn")
    done = repair(url)
    kinds = {action.kind for action in done.actions}
    assert kinds == {
        "drop_part",
        "remove_orphan",
        "remove_segment",
        "abort_upload",
        "gather_index",
        "hide_sample",
    }
    assert repair(url).actions == []
    listed = client.list_multipart_uploads(Bucket="states", Prefix="repaired")
    left = listed.get("Uploads", [])
    assert [upload["Key"] for upload in left] == ["repaired/set2/other"]
    have = set(open_dataset(url).index["sample_id"].to_pylist())
    with DatasetWriter.resume(url) as writer:
        for sample in samples:
            if sample.sample_id not in have:
                writer.append(sample)
    dataset = open_dataset(url)
    assert len(dataset) == len(samples)
    assert all(same_sample(dataset.get(sample.sample_id), sample) for sample in samples)
    assert validate(url, "full").findings == []
