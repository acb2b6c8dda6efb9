"""`docs/format.md` says enough to write and to read a data set without this package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from eagle3data import open_dataset, validate
from eagle3data.schema.digest import crc32c
from eagle3data.schema.manifest import Manifest
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury
from tests.readers import format_from_the_page as page
from tests.support import random_samples, small_manifest, write_set


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    manifest = small_manifest()
    return Path(write_set(tmp_path / "ours", random_samples(9, manifest), manifest))


def _manifest() -> dict[str, object]:
    value: dict[str, object] = json.loads(small_manifest().model_dump_json())
    return value


def _samples() -> list[page.Tokens]:
    rng = np.random.default_rng(0)
    made = []
    for number, length in enumerate((40, 100, 16, 1)):
        ids = rng.integers(0, 500, length).astype(np.int32)
        mask = rng.integers(0, 2, length).astype(np.uint8)
        mask[-1] = 1
        states = rng.standard_normal((4, length, 32)).astype(np.float16)
        split = "eval" if number == 2 else None
        made.append(page.Tokens(page.sample_id(ids, mask), states, ids, mask, split))
    return made


def test_a_set_written_from_the_page_is_one(tmp_path: Path) -> None:
    folder, samples = tmp_path / "theirs", _samples()
    page.write(folder, _manifest(), samples)
    dataset = open_dataset(str(folder))
    assert [sample.sample_id for sample in dataset] == [sample.name for sample in samples]
    for found, written in zip(dataset, samples, strict=True):
        for slot, layer in enumerate(dataset.manifest.layers):
            np.testing.assert_array_equal(found.hidden_states[layer], written.states[slot])
        assert found.split == written.split
    report = validate(str(folder), level="full")
    assert report.findings == []
    assert report.verdict == "clean"


def test_our_sets_are_read_as_the_page_says(ours: Path) -> None:
    dataset = open_dataset(str(ours))
    bury(Root(str(ours)), shard=0, sample_id=dataset[0].sample_id, kind="test", reason="a test")
    dataset = open_dataset(str(ours))
    assert len(dataset) == 8
    assert page.generation(ours) == dataset.generation
    read = list(page.samples_of(ours))
    assert [name for name, _, _ in read] == [sample.sample_id for sample in dataset]
    for (_, states, ids), sample in zip(read, dataset, strict=True):
        assert ids == sample.input_ids.tolist()
        for layer, values in sample.hidden_states.items():
            np.testing.assert_array_equal(states[layer], values)


def test_digests_are_the_pages(ours: Path) -> None:
    group = json.loads((ours / "zarr.json").read_text())["attributes"]
    assert page.canonical_digest(group["eagle3data"]) == group["eagle3data_digest"]
    identity = Manifest.from_json(group["eagle3data"], "").identity
    assert page.identity(group["eagle3data"]) == identity
    for segment in (ours / "plan").iterdir():
        table = pa.ipc.open_file(str(segment)).read_all()
        facts = json.loads(table.schema.metadata[b"eagle3data"])
        assert facts["rows"] == page.rows_digest(table)
        assert facts["digest"] == page.lines_digest([identity, facts["rows"]])
    assert page.crc32c(b"123456789") == crc32c(b"123456789") == 0xE3069283
