"""`--recompute`: faults in stored real states, told row by row by the target itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data import open_dataset
from eagle3data.extractor.recompute import Recompute, TransformersTarget
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.validation.findings import Finding
from eagle3data.validation.recompute import Recomputation, check_recomputed
from eagle3data.validation.recomputed import Recomputed, RecomputingTarget
from eagle3data.writers.dataset_writer import DatasetWriter
from tests.faults.stored import States, StoredSet
from tests.support import Command

LAYERS = [2, 15, 27, 30]
FINAL = 30
ALL = 100


@dataclass
class OneLoad:
    """The target, loaded once for all tests; what it has run is kept."""

    target: TransformersTarget
    samples: int = ALL
    ran: dict[tuple[int, ...], Recomputed] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def compute_dtype(self) -> str:
        return self.target.compute_dtype

    def load(
        self, model: str, revision: str | None, manifest: Manifest, *, trust_remote_code: bool
    ) -> RecomputingTarget:
        return self

    @property
    def final_layer(self) -> int:
        return self.target.final_layer

    def run(
        self, input_ids: Sequence[int], layers: Collection[int], twins: Collection[int]
    ) -> Recomputed:
        key = tuple(input_ids)
        if key not in self.ran:
            self.ran[key] = self.target.run(input_ids, range(self.final_layer + 1), twins)
        states = {layer: self.ran[key].states[layer] for layer in layers}
        return Recomputed(states=states, twins=self.ran[key].twins)

    def at(self, input_ids: Sequence[int], layer: int) -> Any:
        """Recomputed states of a layer."""
        return self.run(input_ids, [layer], LAYERS).states[layer]

    def norm(self, states: Any) -> Any:
        return self.target.norm(states)


@pytest.fixture(scope="module")
def bfloat16(smollm2: Path) -> OneLoad:
    return OneLoad(TransformersTarget(str(smollm2), compute_dtype="bfloat16"))


@pytest.fixture(scope="module")
def few(states: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what `extract` made (in padded batches, bfloat16) every third sample and the longest."""
    folder = tmp_path_factory.mktemp("few") / "set"
    dataset = open_dataset(states)
    positions = {*range(0, len(dataset), 3), int(dataset.index["length"].to_numpy().argmax())}
    with DatasetWriter.create(str(folder), dataset.manifest) as writer:
        for position in sorted(positions):
            writer.append(dataset[position])
    return folder


@pytest.fixture
def stored(few: Path, tmp_path: Path) -> StoredSet:
    """A copy to be damaged."""
    shutil.copytree(few, tmp_path / "set")
    return StoredSet(tmp_path / "set")


Check = Callable[[StoredSet], Recomputation]


@pytest.fixture
def check(bfloat16: OneLoad, smollm2: Path) -> Check:
    def run(stored: StoredSet) -> Recomputation:
        stored.account()
        dataset = open_dataset(str(stored.folder))
        return check_recomputed(dataset, str(smollm2), None, bfloat16, lambda _: None)

    return run


def names(stored: StoredSet) -> list[str]:
    """Sample ids, the longest first."""
    rows = sorted(stored.rows(), key=lambda row: -row["length"])
    return [row["sample_id"] for row in rows]


def only(found: Recomputation) -> Finding:
    assert len(found.findings) == 1, found.findings
    assert found.undecided == []
    return found.findings[0]


def change(
    stored: StoredSet, edit: Callable[[States], States], samples: list[str], layers: list[int]
) -> None:
    for sample in samples:
        for layer in layers:
            states = edit(stored.states(layer, sample).astype(np.float32))
            stored.put(layer, sample, states.astype(np.float16))


def test_the_clean_set(states: str, bfloat16: OneLoad, smollm2: Path) -> None:
    dataset = open_dataset(states)
    found = check_recomputed(dataset, str(smollm2), None, bfloat16, lambda _: None)
    assert (found.findings, found.undecided) == ([], [])
    assert (found.samples, found.tokens) == (len(dataset), dataset.tokens)


def test_the_clean_set_of_another_batch_shape(
    clean_folder: Path, bfloat16: OneLoad, smollm2: Path
) -> None:
    dataset = open_dataset(str(clean_folder))
    found = check_recomputed(dataset, str(smollm2), None, bfloat16, lambda _: None)
    assert (found.findings, found.undecided, found.samples) == ([], [], len(dataset))


@pytest.mark.parametrize("how", [["--compute-dtype", "float32"], ["--dtype", "bfloat16"]])
def test_clean_sets_of_other_dtypes(
    how: list[str], prompts: Path, smollm2: Path, tmp_path: Path, command: Command
) -> None:
    url = str(tmp_path / "set")
    some = ["--shards", "0:3", *how]
    done = command("extract", prompts, "--model", smollm2, "--out", url, *some)
    assert done.returncode == 0, done.stderr
    dataset = open_dataset(url)
    found = check_recomputed(dataset, str(smollm2), None, Recompute(ALL), lambda _: None)
    assert (found.findings, found.undecided, found.samples) == ([], [], len(dataset))


def test_on_the_command_line(few: Path, smollm2: Path, command: Command) -> None:
    done = command("validate", few, "--model", smollm2, "--recompute", 3)
    assert done.returncode == 0, done.stdout
    assert "Recomputed 3 of 8 samples" in done.stdout
    assert "the longest 377" in done.stdout
    assert command("validate", few, "--recompute", 3).returncode == 2
    assert command("validate", few, "--model", smollm2, "--recompute", 0).returncode == 2


@pytest.mark.parametrize("rows", [1, -1])
def test_the_whole_set_shifted(stored: StoredSet, check: Check, rows: int) -> None:
    change(stored, lambda s: np.roll(s, rows, axis=0), names(stored), stored.layers)
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("shifted", None, None)
    assert f"token t{-rows:+d}" in finding.detail


def test_samples_that_cannot_show_a_shift(
    check: Check, few: Path, bfloat16: OneLoad, tmp_path: Path
) -> None:
    """One token, and the same token over and over: the set's fault is still the set's."""
    dataset = open_dataset(str(few))
    odd = {"alone": [7], "again": [7] * 40}
    folder = tmp_path / "odd"
    with DatasetWriter.create(str(folder), dataset.manifest) as writer:
        for sample in dataset:
            writer.append(sample)
        for name, ids in odd.items():
            states = {layer: bfloat16.at(ids, layer).half().numpy() for layer in LAYERS}
            mask = [1] * len(ids)
            writer.append(
                Sample(hidden_states=states, input_ids=ids, loss_mask=mask, sample_id=name)
            )
    damaged = StoredSet(folder)
    assert check(damaged).findings == []
    change(damaged, lambda s: np.roll(s, 1, axis=0), names(damaged), damaged.layers)
    findings = check(damaged).findings
    assert [(f.kind, f.sample_id) for f in findings][:1] == [("shifted", None)]
    assert {f.sample_id for f in findings} <= {None, "again"}


def test_one_layer_of_one_sample_shifted(stored: StoredSet, check: Check) -> None:
    victim = names(stored)[3]
    change(stored, lambda s: np.roll(s, 1, axis=0), [victim], [15])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("shifted", victim, 15)
    assert finding.token_range is None


@pytest.mark.parametrize("dropped", [1, 64])
def test_rows_missing_from_the_middle_on(stored: StoredSet, check: Check, dropped: int) -> None:
    longest = names(stored)[0]
    assert stored.row(longest)["length"] > 300

    def drop(states: States) -> States:
        kept = np.delete(states, np.s_[150 : 150 + dropped], axis=0)
        return np.concatenate([kept, states[-dropped:]])

    change(stored, drop, [longest], stored.layers)
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("shifted", longest, None)
    assert f"token t+{dropped}" in finding.detail
    length = stored.row(longest)["length"]
    assert finding.token_range is not None
    assert finding.token_range[0] == 150
    assert length - dropped <= finding.token_range[1] <= length


def test_one_row_written_twice(stored: StoredSet, check: Check) -> None:
    longest = names(stored)[0]

    def again(states: States) -> States:
        states[200] = states[199]
        return states

    change(stored, again, [longest], [27])
    finding = only(check(stored))
    assert (finding.kind, finding.layer, finding.token_range) == ("shifted", 27, (200, 201))


def test_one_row_of_zeros(stored: StoredSet, check: Check) -> None:
    longest = names(stored)[0]

    def empty(states: States) -> States:
        states[200] = 0
        return states

    change(stored, empty, [longest], [2])
    finding = only(check(stored))
    assert (finding.kind, finding.layer, finding.token_range) == ("all_zero", 2, (200, 201))


def test_two_samples_swapped(stored: StoredSet, check: Check) -> None:
    first, second = names(stored)[4:6]
    for layer in stored.layers:
        a, b = stored.states(layer, first), stored.states(layer, second)
        stored.put(layer, first, np.resize(b, a.shape))
        stored.put(layer, second, np.resize(a, b.shape))
    found = check(stored)
    assert {(f.kind, f.sample_id, f.layer) for f in found.findings} == {
        ("swapped_samples", first, None),
        ("swapped_samples", second, None),
    }
    assert any(second in f.detail for f in found.findings if f.sample_id == first)


def test_another_samples_rows_from_the_middle_on(stored: StoredSet, check: Check) -> None:
    longest, other = names(stored)[:2]
    start = 120
    for layer in stored.layers:
        states, theirs = stored.states(layer, longest), stored.states(layer, other)
        states[start : len(theirs)] = theirs[start:]
        stored.put(layer, longest, states)
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id) == ("swapped_samples", longest)
    assert other in finding.detail
    assert finding.token_range is not None
    assert finding.token_range[0] == start


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("layer", "like", "kind"),
    [
        (27, 26, "wrong_layer"),
        (15, 16, "wrong_layer"),
        (FINAL, 29, "wrong_final_layer"),
        (15, 27, "layers_swapped"),
    ],
)
def test_another_layers_states(
    stored: StoredSet,
    check: Check,
    bfloat16: OneLoad,
    layer: int,
    like: int,
    kind: str,
    whole: bool,
) -> None:
    victims = names(stored) if whole else names(stored)[2:3]
    for victim in victims:
        ids = stored.row(victim)["input_ids"]
        states = bfloat16.at(ids, like)
        stored.put(layer, victim, states.half().numpy())
    finding = only(check(stored))
    assert (finding.kind, finding.layer) == (kind, layer)
    assert finding.sample_id == (None if whole else victims[0])
    assert f"states of layer {like}" in finding.detail


@pytest.mark.parametrize("times", [1, 2])
def test_normed_states(stored: StoredSet, check: Check, bfloat16: OneLoad, times: int) -> None:
    for name in names(stored):
        states = bfloat16.at(stored.row(name)["input_ids"], FINAL)
        for _ in range(times):
            states = bfloat16.norm(states)
        stored.put(FINAL, name, states.half().numpy())
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("wrong_norm_state", None, FINAL)
    assert ("twice" in finding.detail) == (times == 2)


def test_a_set_of_normed_states_that_says_so(
    stored: StoredSet, check: Check, bfloat16: OneLoad
) -> None:
    for name in names(stored):
        states = bfloat16.at(stored.row(name)["input_ids"], FINAL)
        stored.put(FINAL, name, bfloat16.norm(states).half().numpy())

    def declare(manifest: dict[str, Any]) -> None:
        manifest["capture"]["norm_state"] = "post"

    stored.edit_manifest(declare)
    assert check(stored).findings == []


def test_scaled_states(stored: StoredSet, check: Check) -> None:
    victim = names(stored)[1]
    change(stored, lambda s: s * 1.25, [victim], [2])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("scaled", victim, 2)
    assert "times 1.25" in finding.detail


def test_every_row_brought_to_one_length(stored: StoredSet, check: Check) -> None:
    def unit(states: States) -> States:
        scaled: States = states / np.linalg.norm(states, axis=1, keepdims=True)
        return scaled

    change(stored, unit, names(stored), [15])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("scaled", None, 15)
    assert "a number of its own" in finding.detail


def test_garbage_from_the_middle_on(stored: StoredSet, check: Check) -> None:
    longest = names(stored)[0]
    generator = np.random.default_rng(0)

    def spoil(states: States) -> States:
        noise = generator.standard_normal(states.shape) * states.std(axis=0)
        states[260:] = noise[260:]
        return states

    change(stored, spoil, [longest], [15, 27])
    found = check(stored)
    assert {(f.kind, f.sample_id, f.layer) for f in found.findings} == {
        ("states_differ", longest, 15),
        ("states_differ", longest, 27),
    }
    assert {f.token_range for f in found.findings} == {(260, stored.row(longest)["length"])}


def test_a_quarter_of_the_dimensions_lost(stored: StoredSet, check: Check) -> None:
    def lose(states: States) -> States:
        states[:, 144:288] = 0
        return states

    change(stored, lose, names(stored), [15])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("states_differ", None, 15)
    assert "144 of 576 dimensions differ, between 144 and 287" in finding.detail


def test_neighbours_exchanged(stored: StoredSet, check: Check) -> None:
    victim = names(stored)[0]
    length = stored.row(victim)["length"] // 2 * 2
    order = np.arange(stored.row(victim)["length"])
    order[:length] = order[:length].reshape(-1, 2)[:, ::-1].ravel()
    change(stored, lambda s: s[order], [victim], stored.layers)
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id) == ("states_differ", victim)
    assert "in another order" in finding.detail


def test_the_large_numbers_of_first_rows_clipped(stored: StoredSet, check: Check) -> None:
    """One strange row of a sample proves nothing; the same one in every sample does."""
    change(stored, lambda s: np.concatenate([s[:1].clip(-40, 40), s[1:]]), names(stored), [15])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("states_differ", None, 15)
    assert "the first row" in finding.detail


def test_the_last_row_but_one_of_every_sample(stored: StoredSet, check: Check) -> None:
    def lose(states: States) -> States:
        states[-2, ::2] = 0
        return states

    change(stored, lose, names(stored), [15])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("states_differ", None, 15)
    assert "the second last row" in finding.detail


def test_states_of_the_text_without_its_beginning(
    stored: StoredSet, check: Check, bfloat16: OneLoad
) -> None:
    """Right tokens, right places, wrong context: what a lost prefix leaves."""
    longest, start = names(stored)[0], 100
    ids = stored.row(longest)["input_ids"]
    for layer in stored.layers:
        states = stored.states(layer, longest)
        states[start:] = bfloat16.at(ids[start:], layer).half().numpy()
        stored.put(layer, longest, states)
    findings = check(stored).findings
    assert "states_differ" in {f.kind for f in findings}
    assert {f.sample_id for f in findings} == {longest}
    ranges = [f.token_range for f in findings if f.token_range]
    assert len(ranges) == len(findings)
    assert min(first for first, _ in ranges) == start


@pytest.mark.parametrize("layer", [2, FINAL])
def test_two_dimensions_exchanged(stored: StoredSet, check: Check, layer: int) -> None:
    """Too little for any row to show it."""

    def exchange(states: States) -> States:
        states[:, [100, 200]] = states[:, [200, 100]]
        return states

    change(stored, exchange, names(stored), [layer])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("states_differ", None, layer)
    assert "2 of 576 dimensions differ, between 100 and 200" in finding.detail


def test_one_dimension_of_one_sample(stored: StoredSet, check: Check) -> None:
    victim = names(stored)[2]

    def lose(states: States) -> States:
        states[:, 300] = 0
        return states

    change(stored, lose, [victim], [27])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("states_differ", victim, 27)
    assert "1 of 576 dimensions differs: 300" in finding.detail


def test_long_samples_keep_fewer_layers(
    stored: StoredSet, check: Check, bfloat16: OneLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3data.validation.recompute._MOST_BYTES", 1 << 20)
    victim = names(stored)[2]
    states = bfloat16.at(stored.row(victim)["input_ids"], 14)
    stored.put(15, victim, states.half().numpy())
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("wrong_layer", victim, 15)


def test_rows_in_another_order(stored: StoredSet, check: Check) -> None:
    victim = names(stored)[0]
    order = np.random.default_rng(0).permutation(stored.row(victim)["length"])
    change(stored, lambda s: s[order], [victim], stored.layers)
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id) == ("states_differ", victim)
    assert "in another order" in finding.detail


def with_noise(size: float) -> Callable[[States], States]:
    generator = np.random.default_rng(0)

    def add(states: States) -> States:
        noisy: States = states * (1 + size * generator.standard_normal(states.shape))
        return noisy

    return add


@pytest.mark.parametrize("size", [0.05, 0.3])
def test_less_precision_than_the_dtype_has(stored: StoredSet, check: Check, size: float) -> None:
    change(stored, with_noise(size), names(stored), [2])
    finding = only(check(stored))
    assert (finding.kind, finding.sample_id, finding.layer) == ("states_differ", None, 2)


def test_a_quantized_target_may_round_more(stored: StoredSet, check: Check) -> None:
    def declare(manifest: dict[str, Any]) -> None:
        manifest["target"]["quantization"] = "fp8"

    change(stored, with_noise(0.05), names(stored), [2])
    stored.edit_manifest(declare)
    found = check(stored)
    assert found.findings == []
    assert "quantized" in found.undecided[0]


def test_other_weights(stored: StoredSet, smollm2: Path) -> None:
    """A fine-tune has the same config, which digests can't tell; its states differ."""
    import torch

    tuned = TransformersTarget(str(smollm2), compute_dtype="bfloat16")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in tuned._model.parameters():
            if weight.dim() == 2:
                noise = torch.randn(weight.shape, generator=generator) * weight.float().std()
                weight.add_((0.1 * noise).to(weight.dtype))
    dataset = open_dataset(str(stored.folder))
    found = check_recomputed(dataset, str(smollm2), None, OneLoad(tuned, 3), lambda _: None)
    assert {(f.kind, f.sample_id) for f in found.findings} == {("states_differ", None)}


def test_a_sample_that_cannot_be_read(stored: StoredSet, bfloat16: OneLoad, smollm2: Path) -> None:
    longest = names(stored)[0]
    stored.object_of(15, longest).unlink()
    shard = stored.row(longest)["shard"]
    readable = [row for row in stored.rows() if row["shard"] != shard]
    dataset = open_dataset(str(stored.folder))
    found = check_recomputed(dataset, str(smollm2), None, bfloat16, lambda _: None)
    assert {(f.kind, f.layer) for f in found.findings} == {("object_missing", 15)}
    assert longest in {f.sample_id for f in found.findings}
    assert found.samples == len(readable)
