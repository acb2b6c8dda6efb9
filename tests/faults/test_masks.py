"""Loss masks that are off the assistant's tokens, in a set of real chats and states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import zarr

from eagle3data.validation.findings import Finding, Report
from eagle3data.validation.validate import validate
from tests.faults.stored import Row, StoredSet

VICTIM = "talk-05"
Mask = list[bool]


def put_masks(stored: StoredSet, edit: Callable[[Mask], Mask], samples: list[str]) -> None:
    """Change loss masks in the index and in the shards, as a faulty `prepare` would have."""
    array = zarr.open_array(stored.folder / "loss_mask", mode="r+")

    def change(rows: list[Row]) -> list[Row]:
        for row in rows:
            if row["sample_id"] in samples:
                mask = edit(row["loss_mask"])
                row.update(loss_mask=mask, n_loss_tokens=sum(mask))
                start = row["token_offset"]
                array[start : start + row["length"]] = np.array(mask, np.uint8)
        return rows

    for shard in stored.parts():
        stored.edit_rows(change, shard)
    stored.account()


def rolled(mask: Mask) -> Mask:
    return [False, *mask[:-1]]


def sample_ids(stored: StoredSet) -> list[str]:
    return [row["sample_id"] for row in stored.rows()]


def masks_found(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind.startswith("mask")]


def test_every_mask_one_off(stored: StoredSet, smollm2: Path) -> None:
    put_masks(stored, rolled, sample_ids(stored))
    assert validate(str(stored.folder), "full", str(smollm2)).ok
    report = validate(str(stored.folder), "all", str(smollm2))
    assert [(f.kind, f.sample_id) for f in report.findings] == [("mask_shifted", None)]
    assert "+1 tokens" in report.findings[0].detail


def test_one_mask_one_off(stored: StoredSet, smollm2: Path) -> None:
    put_masks(stored, lambda mask: [*mask[1:], False], [VICTIM])
    report = validate(str(stored.folder), "semantic", str(smollm2))
    assert [(f.kind, f.sample_id) for f in report.findings] == [("mask_shifted", VICTIM)]


def test_the_question_is_trained_on(stored: StoredSet, smollm2: Path) -> None:
    put_masks(stored, lambda mask: [not kept for kept in mask], [VICTIM])
    report = validate(str(stored.folder), "semantic", str(smollm2))
    assert [(f.kind, f.sample_id) for f in report.findings] == [("mask_wrong_role", VICTIM)]


def test_it_takes_the_tokenizer_to_see_it(stored: StoredSet) -> None:
    put_masks(stored, rolled, [VICTIM])
    report = validate(str(stored.folder), "semantic")
    assert masks_found(report) == []
    assert any("loss masks" in sentence for sentence in report.confidence)


def test_the_clean_set(stored: StoredSet, smollm2: Path) -> None:
    report = validate(str(stored.folder), "semantic", str(smollm2))
    assert report.findings == []
    assert report.undecided == []
    said = next(sentence for sentence in report.confidence if "Loss masks of" in sentence)
    count = len(sample_ids(stored))
    assert f"Loss masks of {count} of {count} samples" in said
    assert f"{count} of {count} masked stretches" in said
