"""Each kind of fault, built into stored real states, is named together with its sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data.validation.findings import Finding, Report
from eagle3data.validation.validate import validate
from tests.faults.stored import States, StoredSet

FINAL = 30
VICTIM = "talk-05"


def kinds(report: Report, sample_id: str | None = None) -> set[str]:
    return {finding.kind for finding in report.findings if finding.sample_id == sample_id}


def only_about(report: Report, *sample_ids: str | None) -> bool:
    return {finding.sample_id for finding in report.findings} == set(sample_ids)


def semantic(stored: StoredSet, model: Path | None) -> Report:
    return validate(str(stored.folder), "semantic", str(model) if model else None)


def sample_ids(stored: StoredSet) -> list[str]:
    return [row["sample_id"] for row in stored.rows()]


def test_the_clean_set_has_no_finding(stored: StoredSet, smollm2: Path) -> None:
    report = validate(str(stored.folder), "all", str(smollm2))
    assert report.findings == []
    assert report.undecided == []
    assert report.ok
    assert report.checked.samples == len(sample_ids(stored))


def test_the_clean_set_says_what_was_not_proven_without_a_model(stored: StoredSet) -> None:
    report = semantic(stored, None)
    assert report.ok
    assert any("Not proven" in sentence for sentence in report.confidence)


@pytest.mark.parametrize("rows", [1, -1])
def test_one_sample_shifted(stored: StoredSet, smollm2: Path, rows: int) -> None:
    stored.change(lambda s: np.roll(s, rows, axis=0), [VICTIM], stored.layers)
    report = semantic(stored, smollm2)
    assert kinds(report, VICTIM) == {"shifted"}
    assert only_about(report, VICTIM)


def test_one_layer_of_one_sample_shifted(stored: StoredSet, smollm2: Path) -> None:
    stored.change(lambda s: np.roll(s, 1, axis=0), [VICTIM], [15])
    report = semantic(stored, smollm2)
    assert [(f.kind, f.sample_id, f.layer) for f in report.findings] == [("shifted", VICTIM, 15)]


def test_a_shift_that_begins_inside_a_sample(stored: StoredSet, smollm2: Path) -> None:
    longest = max(stored.rows(), key=lambda row: row["length"])

    def drop_a_row(states: States) -> States:
        middle = len(states) // 2
        return np.concatenate([states[:middle], states[middle + 1 :], states[-1:]])

    stored.change(drop_a_row, [longest["sample_id"]], stored.layers)
    report = semantic(stored, smollm2)
    assert "shifted" in kinds(report, longest["sample_id"])
    assert only_about(report, longest["sample_id"])


def test_zeroed_layer(stored: StoredSet, smollm2: Path) -> None:
    stored.change(np.zeros_like, sample_ids(stored), [15])
    report = validate(str(stored.folder), "quick")
    assert {(f.kind, f.layer) for f in report.findings} == {("all_zero", 15)}
    assert {f.sample_id for f in report.findings} == set(sample_ids(stored))
    assert not semantic(stored, smollm2).ok


def test_zeroed_behind_the_indexs_back(stored: StoredSet) -> None:
    stored.put(15, VICTIM, np.zeros_like(stored.states(15, VICTIM)))
    assert validate(str(stored.folder), "quick").ok
    report = validate(str(stored.folder), "full")
    assert kinds(report, VICTIM) == {"all_zero"}


def twins(stored: StoredSet) -> tuple[str, str]:
    """Two samples of nearly the same length."""
    rows = sorted(stored.rows(), key=lambda row: row["length"])
    return rows[20]["sample_id"], rows[21]["sample_id"]


def test_swapped_samples(stored: StoredSet, smollm2: Path) -> None:
    first, second = twins(stored)
    for layer in stored.layers:
        a, b = stored.states(layer, first), stored.states(layer, second)
        stored.put(layer, first, np.resize(b, a.shape))
        stored.put(layer, second, np.resize(a, b.shape))
    stored.account()
    report = semantic(stored, smollm2)
    assert kinds(report, first) == kinds(report, second) == {"swapped_samples"}
    assert only_about(report, first, second)
    assert second in next(f.detail for f in report.findings if f.sample_id == first)


def test_every_sample_holds_the_next_ones_states(stored: StoredSet, smollm2: Path) -> None:
    names = sample_ids(stored)
    for layer in stored.layers:
        states = [stored.states(layer, name) for name in names]
        for at, name in enumerate(names):
            stored.put(layer, name, np.resize(states[at - 1], states[at].shape))
    stored.account()
    report = semantic(stored, smollm2)
    assert not report.ok
    assert "swapped_samples" in {finding.kind for finding in report.findings}


def test_final_layer_one_short_in_the_manifest(stored: StoredSet) -> None:
    def one_short(manifest: dict[str, Any]) -> None:
        manifest["capture"]["layers"] = [2, 15, 27, 29]

    stored.edit_manifest(one_short)
    assert "wrong_final_layer" in kinds(validate(str(stored.folder), "quick"))


def test_declared_post_norm_but_not(stored: StoredSet, smollm2: Path) -> None:
    def declare(manifest: dict[str, Any]) -> None:
        manifest["capture"]["norm_state"] = "post"

    stored.edit_manifest(declare)
    assert "wrong_norm_state" in kinds(semantic(stored, smollm2))


@pytest.mark.parametrize("pair", [(2, 15), (27, FINAL)])
@pytest.mark.parametrize("whole", [True, False])
def test_layers_swapped(
    stored: StoredSet, smollm2: Path, pair: tuple[int, int], whole: bool
) -> None:
    names = sample_ids(stored) if whole else [VICTIM]
    for name in names:
        low, high = (stored.states(layer, name) for layer in pair)
        stored.put(pair[0], name, high)
        stored.put(pair[1], name, low)
    stored.account()
    report = semantic(stored, smollm2)
    assert "layers_swapped" in kinds(report, None if whole else VICTIM)
    assert only_about(report, None if whole else VICTIM)


def test_noise_in_place_of_states(stored: StoredSet, smollm2: Path) -> None:
    generator = np.random.default_rng(0)

    def noise(states: States) -> States:
        values = generator.standard_normal(states.shape) * states.std(axis=0, dtype=np.float32)
        noisy: States = values.astype(np.float16)
        return noisy

    stored.change(noise, [VICTIM], stored.layers)
    report = semantic(stored, smollm2)
    assert "swapped_samples" in kinds(report, VICTIM)
    assert only_about(report, VICTIM)


def test_flipped_byte(stored: StoredSet) -> None:
    path = stored.object_of(27, VICTIM)
    data = bytearray(path.read_bytes())
    row = stored.row(VICTIM)
    chunk_bytes = 16 * 576 * 2 + 4
    data[row["token_offset"] % 1024 // 16 * chunk_bytes + 100] ^= 1
    samples_before = [r for r in stored.rows() if r["shard"] == row["shard"]]
    assert samples_before[0]["token_offset"] % 1024 == 0
    path.write_bytes(data)
    assert validate(str(stored.folder), "quick").ok
    report = validate(str(stored.folder), "full")
    assert [(f.kind, f.sample_id, f.layer) for f in report.findings] == [
        ("chunk_corrupt", VICTIM, 27)
    ]


def test_truncated_and_missing_objects(stored: StoredSet) -> None:
    path = stored.object_of(27, VICTIM)
    path.write_bytes(path.read_bytes()[:-5000])
    last = sample_ids(stored)[-1]
    stored.object_of(2, last).unlink()
    report = validate(str(stored.folder), "quick")
    assert {(f.kind, f.shard, f.layer) for f in report.findings} == {
        ("object_truncated", stored.row(VICTIM)["shard"], 27),
        ("object_missing", stored.row(last)["shard"], 2),
    }
    full = validate(str(stored.folder), "full")
    assert "object_missing" in kinds(full, last)


def test_an_object_written_again_since(stored: StoredSet) -> None:
    stored.put(15, VICTIM, stored.states(15, VICTIM) * np.float16(1.25))
    report = validate(str(stored.folder), "full")
    assert [(f.kind, f.sample_id, f.layer) for f in report.findings] == [
        ("object_changed", VICTIM, 15)
    ]


def test_rows_moved_within_a_sample_since(stored: StoredSet) -> None:
    """The same rows in another order keep every statistic and every chunk's own checksum."""
    stored.put(15, VICTIM, np.roll(stored.states(15, VICTIM), 1, axis=0))
    report = validate(str(stored.folder), "full")
    assert [(f.kind, f.shard, f.layer) for f in report.findings] == [
        ("object_changed", stored.row(VICTIM)["shard"], 15)
    ]


def edited(stored: StoredSet, edit: Any, shard: int = 0) -> Report:
    stored.edit_rows(edit, shard)
    return validate(str(stored.folder), "quick")


def test_duplicate_sample_and_overlap(stored: StoredSet) -> None:
    report = edited(stored, lambda rows: [*rows, rows[1]])
    assert kinds(report, sample_ids(stored)[1]) >= {"duplicate_sample", "index_overlap"}


def test_part_gone(stored: StoredSet) -> None:
    stored.parts()[1].unlink()
    report = validate(str(stored.folder), "quick")
    assert [(f.kind, f.shard) for f in report.findings] == [("index_hole", 1)]


def test_wrong_model(stored: StoredSet, smollm2: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in smollm2.iterdir():
        if file.suffix == ".json" and file.is_file():
            text = file.read_text()
            (other / file.name).write_text(text.replace('"rope_theta": ', '"rope_theta": 1'))
    (other / "tokenizer.json").write_text("{}")
    report = validate(str(stored.folder), "quick", str(other))
    assert kinds(report) >= {"wrong_model", "wrong_tokenizer"}


def test_bad_samples_do_not_hide_each_other(stored: StoredSet, smollm2: Path) -> None:
    stored.change(lambda s: np.roll(s, 1, axis=0), [VICTIM], stored.layers)
    stored.change(np.zeros_like, ["talk-09"], [2])
    report = semantic(stored, smollm2)
    found: list[Finding] = report.findings
    assert ("shifted", VICTIM) in {(f.kind, f.sample_id) for f in found}
    assert ("all_zero", "talk-09") in {(f.kind, f.sample_id) for f in found}
