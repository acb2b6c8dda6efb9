"""Rare faults, faults together, faults of a part of a set: real states, edited where they lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data.schema.axis import TokenAxis
from eagle3data.validation.findings import Report
from eagle3data.validation.validate import validate
from tests.faults.capture import Captured, write
from tests.faults.stored import StoredSet
from tests.faults.test_matrix import changed, exchanged, from_captured, swapped

Of = Callable[[str], list[Captured]]
FINAL = 30


@pytest.fixture(scope="module")
def short_folder(
    captured_nature: Of, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """300 chats of 17 to 26 tokens."""
    samples = captured_nature("short chats")
    assert len(samples) == 300
    return write(tmp_path_factory.mktemp("short") / "set", smollm2, samples)


@pytest.fixture
def short(short_folder: Path, tmp_path: Path) -> StoredSet:
    shutil.copytree(short_folder, tmp_path / "set")
    return StoredSet(tmp_path / "set")


def semantic(stored: StoredSet, model: Path | None) -> Report:
    return validate(str(stored.folder), "semantic", str(model) if model else None)


def kinds(report: Report) -> dict[str | None, set[str]]:
    found: dict[str | None, set[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.sample_id, set()).add(finding.kind)
    return found


def shifted(states: Any) -> Any:
    return np.roll(states, 1, axis=0)


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda states: states * np.float16(factor)


@pytest.mark.parametrize("with_model", [True, False])
def test_one_sample_of_each_kind_in_300(
    short: StoredSet, captured_nature: Of, smollm2: Path, with_model: bool
) -> None:
    faults = {
        "shifted": changed(shifted, "talk-20"),
        "swapped_samples": swapped("talk-70", "talk-71"),
        "wrong_norm_state": from_captured(lambda sample: sample["normed"], "talk-120"),
        "layers_swapped": exchanged((2, 15), "talk-150"),
        "all_zero": changed(np.zeros_like, "talk-200", [15]),
        "unlike_rest": changed(scaled(1.25), "talk-250"),
    }
    expected = {
        name: kind
        for kind, build in faults.items()
        for name in build(short, captured_nature("short chats")) or []
    }
    short.account()
    found = kinds(semantic(short, smollm2 if with_model else None))
    assert set(found) == set(expected)
    if not with_model:  # then the norm shows as magnitudes only
        expected["talk-120"] = "unlike_rest"
    for name, kind in expected.items():
        assert kind in found[name], name


def test_two_kinds_in_one_sample(stored: StoredSet, smollm2: Path) -> None:
    """The same samples, so that one fault may not hide the other."""
    stored.put(15, "talk-05", np.zeros_like(stored.states(15, "talk-05")))
    stored.put(27, "talk-05", shifted(stored.states(27, "talk-05")))
    stored.put(2, "talk-08", scaled(3.0)(stored.states(2, "talk-08")))
    stored.put(15, "talk-08", shifted(stored.states(15, "talk-08")))
    stored.account()
    report = semantic(stored, smollm2)
    seen = {(finding.sample_id, finding.kind, finding.layer) for finding in report.findings}
    assert seen >= {
        ("talk-05", "all_zero", 15),
        ("talk-05", "shifted", 27),
        ("talk-08", "unlike_rest", 2),
        ("talk-08", "shifted", 15),
    }
    assert {name for name, _, _ in seen} == {"talk-05", "talk-08"}


@pytest.fixture(scope="module")
def long_folder(
    captured: list[Captured],
    captured_nature: Of,
    smollm2: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """39 samples of up to 162 tokens, `talk-00` on, and three of more than a thousand."""
    axis = TokenAxis(shard_tokens=4096, chunk_tokens=16)
    samples = [*captured, *captured_nature("long")]
    return write(tmp_path_factory.mktemp("long") / "set", smollm2, samples, axis=axis)


def row_left_out(states: Any) -> Any:
    return np.concatenate([states[:512], states[513:], states[-1:]])


def grown(states: Any) -> Any:
    states[512:] *= np.float16(2)
    return states


@pytest.mark.parametrize(
    ("change", "kind", "of_set"), [(row_left_out, "shifted", False), (grown, "unlike_rest", True)]
)
def test_a_fault_in_samples_over_512_tokens_only(
    long_folder: Path, tmp_path: Path, smollm2: Path, change: Any, kind: str, of_set: bool
) -> None:
    """Where all samples that are long enough change at one position, the set is told of."""
    shutil.copytree(long_folder, tmp_path / "set")
    stored = StoredSet(tmp_path / "set")
    long = {row["sample_id"] for row in stored.rows() if row["length"] > 512}
    stored.change(change, sorted(long), stored.layers)
    report = semantic(stored, smollm2)
    assert len(long) == 3
    found = [finding for finding in report.findings if finding.kind == kind]
    assert {finding.sample_id for finding in found} >= ({None} if of_set else long)
    assert {finding.sample_id for finding in report.findings} <= {*long, None}
    for name in {None} if of_set else long:
        starts = [f.token_range[0] for f in found if f.sample_id == name and f.token_range]
        assert abs(min(starts) - 512) <= 48, name


@pytest.mark.parametrize(("change", "kind"), [(shifted, "shifted"), (scaled(2), "prefix_mismatch")])
def test_a_fault_in_one_shard_only(
    stored: StoredSet, smollm2: Path, change: Any, kind: str
) -> None:
    bad = [row["sample_id"] for row in stored.rows_of(2)]
    stored.change(change, bad, stored.layers)
    report = semantic(stored, smollm2)
    assert {f.sample_id for f in report.findings if f.kind == kind} == set(bad)
    assert {finding.shard for finding in report.findings} == {2}


def fp8(states: Any) -> Any:
    import torch

    return torch.from_numpy(states).to(torch.float8_e4m3fn).half().numpy()


def int8(states: Any) -> Any:
    step = np.abs(states.astype(np.float32)).max(1, keepdims=True) / 127
    return (np.round(states / step) * step).astype(np.float16)


def noisy(states: Any) -> Any:
    """A tenth of each row's size, rounded as the rest is."""
    import torch

    size = np.median(np.abs(states.astype(np.float32)), axis=1, keepdims=True)
    noise = size * np.random.default_rng(0).standard_normal(states.shape)
    return torch.from_numpy(states + 0.15 * noise).bfloat16().half().numpy()


def mean_of_neighbours(states: Any) -> Any:
    return ((states.astype(np.float32) + np.roll(states, -1, axis=0)) / 2).astype(np.float16)


def centred(states: Any) -> Any:
    return states - states.mean(1, keepdims=True, dtype=np.float32).astype(np.float16)


def unit(states: Any) -> Any:
    size = np.sqrt(np.square(states.astype(np.float32)).mean(1, keepdims=True))
    return (states / size).astype(np.float16)


def slice_of_another_row(states: Any) -> Any:
    """One of eight devices a token behind the others."""
    states[:, 72:144] = np.roll(states[:, 72:144], 1, axis=0)
    return states


CORRUPTIONS: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda states: states[::-1],
    "every row twice": lambda states: np.repeat(states, 2, axis=0)[: len(states)],
    "turned": lambda states: np.ascontiguousarray(states.T).reshape(states.shape),
    "signs": lambda states: -states,
    "dimensions rolled": lambda states: np.roll(states, 1, axis=1),
    "slice of another row": slice_of_another_row,
    "mean of neighbours": mean_of_neighbours,
    "mean subtracted": centred,
    "unit rows": unit,
    "fp8": fp8,
    "int8": int8,
    "a tenth of noise": noisy,
    "last row twice": lambda states: np.concatenate([states[:-1], states[-2:-1]]),
}


def test_corruptions_of_many_kinds_at_one_layer(stored: StoredSet) -> None:
    """Each in a sample of its own at one layer; no model is asked."""
    victims = {f"talk-{2 * at + 5:02d}": name for at, name in enumerate(CORRUPTIONS)}
    for layer in (15, FINAL):
        for number, (victim, name) in enumerate(victims.items()):
            if (number % 2 == 0) == (layer == FINAL):
                stored.put(layer, victim, CORRUPTIONS[name](stored.states(layer, victim)))
    stored.account()
    found = kinds(semantic(stored, None))
    assert set(found) == set(victims)
