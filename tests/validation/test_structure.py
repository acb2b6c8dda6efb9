"""The levels `quick` and `full` on synthetic sets, without torch and without a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3data.schema.errors import InputError
from eagle3data.validation.validate import validate
from tests.faults.stored import StoredSet
from tests.support import random_samples, small_manifest, write_set


@pytest.fixture
def stored(tmp_path: Path) -> StoredSet:
    manifest = small_manifest()
    samples = random_samples(12, manifest, 60)
    for sample in samples:
        sample.loss_mask[0] = 1
    return StoredSet(Path(write_set(tmp_path / "set", samples, manifest)))


@pytest.mark.parametrize("level", ["quick", "full"])
def test_clean(stored: StoredSet, level: str) -> None:
    report = validate(str(stored.folder), level)
    assert report.findings == []
    assert report.ok
    assert report.checked.samples == 12
    assert report.checked.tokens == sum(row["length"] for row in stored.rows())


def test_states_that_mean_nothing_are_undetermined(stored: StoredSet) -> None:
    pytest.importorskip("torch")
    report = validate(str(stored.folder), "semantic")
    assert report.verdict.value == "undetermined"
    assert report.findings == []


def test_an_unknown_level_and_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="level"):
        validate(str(tmp_path), "deep")
    with pytest.raises(InputError, match=r"zarr\.json"):
        validate(str(tmp_path), "quick")


def test_an_index_part_cut_short(stored: StoredSet) -> None:
    part = stored.parts()[0]
    part.write_bytes(part.read_bytes()[:-40])
    report = validate(str(stored.folder), "full")
    assert ("index_corrupt", 0) in {(f.kind, f.shard) for f in report.findings}


def test_rows_changed_without_their_digest(stored: StoredSet) -> None:
    from tests.faults.stored import _write, read_part

    table, facts = read_part(stored.parts()[0])
    _write(stored.parts()[0], table.slice(1), facts)
    report = validate(str(stored.folder), "quick")
    assert {"index_changed", "index_hole"} <= {f.kind for f in report.findings}


def test_a_sample_in_another_shards_part(stored: StoredSet) -> None:
    row = stored.rows()[-1]
    stored.edit_rows(lambda rows: [*rows, row | {"sample_id": "stray"}], 0)
    report = validate(str(stored.folder), "quick")
    kinds = {f.kind for f in report.findings if f.sample_id == "stray"}
    assert {"index_overlap", "index_hole"} <= kinds


def test_tokens_in_the_shard_are_not_the_indexs(stored: StoredSet) -> None:
    import zarr

    row = stored.rows()[3]
    ids = zarr.open_array(stored.folder / "input_ids", mode="r+")
    at = row["token_offset"]
    ids[at] = (int(np.asarray(ids[at])) + 1) % 500
    assert validate(str(stored.folder), "quick").ok
    report = validate(str(stored.folder), "full")
    assert [(f.kind, f.sample_id) for f in report.findings] == [("tokens_differ", row["sample_id"])]


def test_a_chunk_that_is_not_stored(stored: StoredSet) -> None:
    row = next(row for row in stored.rows() if row["length"] >= 16)
    states = stored.states(2, row["sample_id"])
    states[:16] = np.nan
    stored.put(2, row["sample_id"], states)  # stock zarr leaves chunks of fill values out
    report = validate(str(stored.folder), "full")
    assert row["sample_id"] in {f.sample_id for f in report.findings}
    assert {"chunk_missing", "nonfinite"} & {f.kind for f in report.findings}


@pytest.mark.parametrize("damage", ["missing", "empty", "list", "shape", "codec"])
def test_array_metadata_that_other_readers_would_misread(stored: StoredSet, damage: str) -> None:
    path = stored.folder / "hidden_states/2/zarr.json"
    document = json.loads(path.read_text())
    if damage == "missing":
        path.unlink()
    elif damage == "shape":
        path.write_text(json.dumps({**document, "shape": [1, 1]}))
    elif damage == "codec":
        document["codecs"][0]["configuration"]["index_location"] = "start"
        path.write_text(json.dumps(document))
    else:
        path.write_text({"empty": "", "list": "[]"}[damage])
    report = validate(str(stored.folder), "quick")
    assert [(f.kind, f.layer) for f in report.findings] == [("array_metadata", 2)]


def test_a_plan_that_is_gone_or_doubled(stored: StoredSet) -> None:
    whole = (stored.folder / "plan/0000.arrow").read_bytes()
    segments = sorted((stored.folder / "plan").iterdir())
    (stored.folder / f"plan/{len(segments):04d}.arrow").write_bytes(whole)
    report = validate(str(stored.folder), "quick")
    assert "plan_corrupt" in {f.kind for f in report.findings}
    for segment in (stored.folder / "plan").iterdir():
        segment.unlink()
    report = validate(str(stored.folder), "quick")
    assert [f.kind for f in report.findings] == ["plan_missing"]


def test_a_ledger_entry_that_is_none(stored: StoredSet) -> None:
    (stored.folder / "ledger").mkdir()
    (stored.folder / "ledger/.DS_Store").write_text("")
    assert validate(str(stored.folder), "quick").ok
    (stored.folder / "ledger/x.json").write_text("{}")
    report = validate(str(stored.folder), "quick")
    assert [f.kind for f in report.findings] == ["ledger_corrupt"]
    assert "ledger/x.json is no ledger entry" in report.findings[0].detail
