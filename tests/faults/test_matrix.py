"""What each level sees of each kind of fault, and what it can't see: one table.

Every level begins with `quick`, so what quick sees, all see. `semantic` reads the states of probed
samples, so damaged bytes of those show there, too. A dash is a blind spot: the level passes the
fault by, and the test holds that as well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data.validation.findings import Report
from eagle3data.validation.validate import validate
from tests.faults.capture import Captured
from tests.faults.stored import Row, StoredSet
from tests.faults.test_masks import put_masks

MATRIX = """
fault                    kind              quick full semantic +model
-- states that an engine got wrong, written faithfully: checksums and statistics fit
zeroed sample            all_zero          yes   yes  yes      yes
NaN in a row             nonfinite         yes   yes  yes      yes
infinity in a row        saturated         yes   yes  yes      yes
shifted sample           shifted           -     -    yes      yes
swapped samples          swapped_samples   -     -    yes      yes
final layer normed       wrong_norm_state  -     -    unlike   yes
two layers swapped       layers_swapped    -     -    yes      yes
sample scaled            unlike_rest       -     -    yes      yes
tail of one row          duplicate_rows    -     -    yes      yes
bf16 bits as fp16        misread_bits      -     -    yes      yes
clipped at 40            clipped           -     -    yes      yes
whole set shifted        shifted           -     -    yes      yes
one layer short          wrong_final_layer -     -    -        yes
whole set normed         wrong_norm_state  -     -    -        yes
layers swapped in all    layers_swapped    -     -    -        yes
-- masks that were wrong in the prompts
mask one off             mask_shifted      -     -    -        yes
question trained on      mask_wrong_role   -     -    -        yes
-- what happened to the set since
byte flipped             chunk_corrupt     -     yes  probed   probed
object truncated         object_truncated  yes   yes  yes      yes
object gone              object_missing    yes   yes  yes      yes
written again            object_changed    -     yes  -        -
-- what the index and the manifest say
length one off           length_mismatch   yes   yes  yes      yes
rows overlap             index_overlap     yes   yes  yes      yes
a row left out           index_hole        yes   yes  yes      yes
a row twice              duplicate_sample  yes   yes  yes      yes
another token            tokens_differ     yes   yes  yes      yes
empty mask               mask_empty        yes   yes  yes      yes
"one short" declared     wrong_final_layer yes   yes  yes      yes
another model            wrong_model       -     -    -        other
"""
"""`yes`: this kind, at the sample concerned if it is one. `-`: nothing that names the kind.
`unlike`: seen, as rows unlike the rest. `probed`: seen where the sample is among the probed ones.
`other`: with the model that the set was not made with, at every level that is given one."""

FINAL = 30
Build = Callable[[StoredSet, list[Captured]], list[str] | None]
"""Builds a fault in, and returns the samples that it concerns; None for the set or a shard."""


def rows_of_table() -> list[tuple[str, str, list[str]]]:
    """`(fault, kind, what each level sees)`."""
    found = []
    for line in MATRIX.strip().splitlines()[1:]:
        if not line.startswith("--"):
            fault, cells = line[:25].strip(), line[25:].split()
            found.append((fault, cells[0], cells[1:]))
    return found


def changed(change: Callable[[Any], Any], name: str, layers: list[int] | None = None) -> Build:
    def build(stored: StoredSet, _: list[Captured]) -> list[str]:
        for layer in layers or stored.layers:
            stored.put(layer, name, change(stored.states(layer, name)))
        return [name]

    return build


def at_one_place(value: float) -> Callable[[Any], Any]:
    def change(states: Any) -> Any:
        states[3, 7] = value
        return states

    return change


def swapped(one: str, other: str) -> Build:
    def build(stored: StoredSet, _: list[Captured]) -> list[str]:
        for layer in stored.layers:
            a, b = stored.states(layer, one), stored.states(layer, other)
            stored.put(layer, one, np.resize(b, a.shape))
            stored.put(layer, other, np.resize(a, b.shape))
        return [one, other]

    return build


def exchanged(layers: tuple[int, int], name: str | None = None) -> Build:
    def build(stored: StoredSet, _: list[Captured]) -> list[str] | None:
        for each in [name] if name else [row["sample_id"] for row in stored.rows()]:
            low, high = (stored.states(layer, each) for layer in layers)
            stored.put(layers[0], each, high)
            stored.put(layers[1], each, low)
        return [name] if name else None

    return build


def from_captured(key: Callable[[Captured], Any], name: str | None = None) -> Build:
    def build(stored: StoredSet, captured: list[Captured]) -> list[str] | None:
        for row in stored.rows():
            if name in (None, row["sample_id"]):
                at = int(row["sample_id"].rsplit("-")[-1])
                stored.put(FINAL, row["sample_id"], key(captured[at]))
        return [name] if name else None

    return build


def rolled_everywhere(stored: StoredSet, _: list[Captured]) -> None:
    for row in stored.rows():
        changed(lambda states: np.roll(states, 1, axis=0), row["sample_id"])(stored, [])


def repeated_tail(states: Any) -> Any:
    states[-30:] = states[-30]
    return states


def misread(states: Any) -> Any:
    """float16 of numbers, their bfloat16 bits taken for float16's."""
    return (states.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.float16)


ENGINE_FAULTS: dict[str, Build] = {
    "zeroed sample": changed(np.zeros_like, "talk-05"),
    "NaN in a row": changed(at_one_place(float("nan")), "talk-09", [15]),
    "infinity in a row": changed(at_one_place(float("inf")), "talk-11", [27]),
    "shifted sample": changed(lambda states: np.roll(states, 1, axis=0), "talk-13"),
    "swapped samples": swapped("talk-20", "talk-21"),
    "final layer normed": from_captured(lambda sample: sample["normed"], "talk-23"),
    "two layers swapped": exchanged((15, 27), "talk-25"),
    "sample scaled": changed(lambda states: states * np.float16(0.5), "talk-27", [2, 15, 27]),
    "tail of one row": changed(repeated_tail, "talk-29"),
    "bf16 bits as fp16": changed(misread, "talk-31", [15]),
    "clipped at 40": changed(lambda states: states.clip(-40, 40), "talk-33", [27]),
}
"""Each in a sample of its own, all in one set."""
SET_FAULTS: dict[str, Build] = {
    "whole set shifted": rolled_everywhere,
    "one layer short": from_captured(lambda sample: sample["states"][29]),
    "whole set normed": from_captured(lambda sample: sample["normed"]),
    "layers swapped in all": exchanged((15, 27)),
}


def flip_byte(stored: StoredSet, _: list[Captured]) -> list[str]:
    path = stored.object_of(27, "talk-05")
    data = bytearray(path.read_bytes())
    offset = stored.row("talk-05")["token_offset"] % 1024 // 16 * (16 * 576 * 2 + 4)
    data[offset + 100] ^= 1
    path.write_bytes(data)
    return ["talk-05"]


def truncate(stored: StoredSet, _: list[Captured]) -> None:
    path = stored.object_of(15, "talk-20")
    path.write_bytes(path.read_bytes()[:-5000])


def remove(stored: StoredSet, _: list[Captured]) -> None:
    stored.object_of(2, stored.rows()[-1]["sample_id"]).unlink()


def write_again(stored: StoredSet, _: list[Captured]) -> list[str]:
    stored.put(15, "talk-12", stored.states(15, "talk-12") * np.float16(1.25))
    return ["talk-12"]


DAMAGE: dict[str, Build] = {
    "byte flipped": flip_byte,
    "object truncated": truncate,
    "object gone": remove,
    "written again": write_again,
}
"""Each in another shard or layer, all in one set."""


def edited(change: Callable[[list[Row]], list[Row]], at: int | None) -> Build:
    def build(stored: StoredSet, _: list[Captured]) -> list[str] | None:
        names = [row["sample_id"] for row in stored.rows_of(0)]
        stored.edit_rows(change, 0)
        return None if at is None else [names[at]]

    return build


def updated(**changes: Callable[[Row], Any]) -> Callable[[list[Row]], list[Row]]:
    def change(rows: list[Row]) -> list[Row]:
        rows[1].update({name: value(rows[1]) for name, value in changes.items()})
        return rows

    return change


def one_short(stored: StoredSet, _: list[Captured]) -> None:
    stored.edit_manifest(lambda manifest: manifest["capture"].update(layers=[2, 15, 27, 29]))


def nothing(_: StoredSet, __: list[Captured]) -> None:
    """The set is right; the model is another."""


INDEX_FAULTS: dict[str, Build] = {
    "length one off": edited(updated(length=lambda row: row["length"] + 1), 1),
    "rows overlap": edited(updated(token_offset=lambda row: row["token_offset"] - 16), 1),
    "a row left out": edited(lambda rows: [rows[0], *rows[2:]], 1),
    "a row twice": edited(lambda rows: [*rows, rows[1]], 1),
    "another token": edited(
        updated(input_ids=lambda row: [row["input_ids"][0] + 1, *row["input_ids"][1:]]), 1
    ),
    "empty mask": edited(
        updated(loss_mask=lambda row: [False] * row["length"], n_loss_tokens=lambda _: 0), 1
    ),
    '"one short" declared': one_short,
    "another model": nothing,
}


def masked(edit: Callable[[list[bool]], list[bool]], name: str) -> Build:
    def build(stored: StoredSet, _: list[Captured]) -> list[str]:
        put_masks(stored, edit, [name])
        return [name]

    return build


MASK_FAULTS: dict[str, Build] = {
    "mask one off": masked(lambda mask: [*mask[1:], False], "talk-07"),
    "question trained on": masked(lambda mask: [not kept for kept in mask], "talk-17"),
}
"""Each in a sample of its own, all in one set."""


def levels(stored: StoredSet, model: Path) -> list[Report]:
    url = str(stored.folder)
    return [
        validate(url, "quick"),
        validate(url, "full"),
        validate(url, "semantic"),
        validate(url, "semantic", str(model)),
    ]


def check(fault: str, reports: list[Report], samples: list[str] | None) -> None:
    """Hold the table's row against what the levels said."""
    (row,) = [row for row in rows_of_table() if row[0] == fault]
    _, kind, cells = row
    for report, cell, level in zip(
        reports, cells, ("quick", "full", "semantic", "+model"), strict=True
    ):
        concerned: list[str | None] = [*samples] if samples else [None]
        for name in concerned:
            seen = {f.kind for f in report.findings if name in (None, f.sample_id)}
            where = f"{fault} at {level}, {name or 'the set'}: {sorted(seen)}"
            if cell == "-":
                assert kind not in seen, where
            elif cell == "unlike":
                assert "unlike_rest" in seen, where
            else:
                assert kind in seen, where


def test_the_table_and_the_builders_name_the_same_faults() -> None:
    built = [*ENGINE_FAULTS, *SET_FAULTS, *MASK_FAULTS, *DAMAGE, *INDEX_FAULTS]
    assert [fault for fault, _, _ in rows_of_table()] == built


def test_samples_that_an_engine_got_wrong(
    stored: StoredSet, captured: list[Captured], smollm2: Path
) -> None:
    concerned = {fault: build(stored, captured) for fault, build in ENGINE_FAULTS.items()}
    stored.account()
    reports = levels(stored, smollm2)
    for fault, samples in concerned.items():
        check(fault, reports, samples)
    bad = {name for samples in concerned.values() for name in samples or []}
    for report in reports:
        assert {finding.sample_id for finding in report.findings} <= bad


def test_masks(stored: StoredSet, captured: list[Captured], smollm2: Path) -> None:
    concerned = {fault: build(stored, captured) for fault, build in MASK_FAULTS.items()}
    reports = levels(stored, smollm2)
    for fault, samples in concerned.items():
        check(fault, reports, samples)
    bad = {name for samples in concerned.values() for name in samples or []}
    assert {finding.sample_id for finding in reports[3].findings} == bad


@pytest.mark.parametrize("fault", list(SET_FAULTS))
def test_sets_that_an_engine_got_wrong(
    fault: str, stored: StoredSet, captured: list[Captured], smollm2: Path
) -> None:
    SET_FAULTS[fault](stored, captured)
    stored.account()
    reports = levels(stored, smollm2)
    check(fault, reports, None)
    (kind,) = [kind for name, kind, _ in rows_of_table() if name == fault]
    assert {(finding.kind, finding.sample_id) for finding in reports[3].findings} == {(kind, None)}


def test_damage(stored: StoredSet, captured: list[Captured], smollm2: Path) -> None:
    concerned = {fault: build(stored, captured) for fault, build in DAMAGE.items()}
    reports = levels(stored, smollm2)
    for fault, samples in concerned.items():
        check(fault, reports, samples)


@pytest.mark.parametrize("fault", list(INDEX_FAULTS))
def test_index_and_manifest(
    fault: str, stored: StoredSet, captured: list[Captured], smollm2: Path, tmp_path: Path
) -> None:
    samples = INDEX_FAULTS[fault](stored, captured)
    model = other_model(smollm2, tmp_path) if fault == "another model" else smollm2
    quick = validate(str(stored.folder), "quick")
    with_model = validate(str(stored.folder), "quick", str(model))
    check(fault, [quick, validate(str(stored.folder), "full"), quick, with_model], samples)


def other_model(smollm2: Path, tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    for file in smollm2.iterdir():
        if file.suffix == ".json":
            text = file.read_text()
            (other / file.name).write_text(text.replace('"rope_theta": ', '"rope_theta": 1'))
    return other


def test_the_table_shows_what_quick_sees_at_every_level() -> None:
    for fault, _, cells in rows_of_table():
        if cells[0] == "yes":
            assert cells == ["yes"] * 4, fault
