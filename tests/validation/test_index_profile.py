"""Every sample by its statistics, and every sample's witness: what needs no probing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from eagle3data import open_dataset
from eagle3data.storage.model_weights import TargetHead
from eagle3data.validation import probe_set
from eagle3data.validation.index_findings import index_findings
from eagle3data.validation.index_profile import IndexProfile
from eagle3data.validation.probe_set import ProbeSet
from eagle3data.validation.significance import log_threshold
from eagle3data.validation.witness_checks import WitnessChecks
from tests.support import HIDDEN, VOCABULARY, random_samples, small_manifest, write_set

LAYERS = [2, 6, 9, 12]
FLOORS = dict.fromkeys(LAYERS, 0.4)
COLUMNS = ("rms", "absmax", "min_row_rms")


def statistics(count: int, seed: int = 0) -> dict[str, Any]:
    """What the index says of samples with massive first rows."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(20, 2000, count)
    typical = np.exp(0.05 * draw.standard_normal((count, 4))) * [1, 3, 9, 20]
    massive = np.array([30.0, 9000, 9000, 900])
    rms = np.sqrt((massive**2 / 24 + (lengths[:, None] - 1) * typical**2) / lengths[:, None])
    low = typical * np.exp(-0.3 - 0.05 * np.abs(draw.standard_normal((count, 4))))
    return {
        "length": lengths,
        "rms": rms,
        "absmax": np.tile(massive, (count, 1)),
        "min_row_rms": low,
    }


def profile(values: dict[str, Any]) -> IndexProfile:
    zeros = [[0] * 4] * len(values["length"])
    lists = {name: pa.array(values[name].tolist(), pa.list_(pa.float32())) for name in COLUMNS}
    counts = {name: pa.array(zeros) for name in ("n_zero_rows", "n_nan", "n_inf")}
    return IndexProfile(pa.table({"length": values["length"], **lists, **counts}), LAYERS)


@pytest.mark.parametrize("seed", range(5))
def test_clean_statistics(seed: int) -> None:
    found = profile(statistics(500, seed))
    assert found.scaled(FLOORS, log_threshold(2000)) == []
    assert found.equal_samples() == []
    assert list(found.equal_layers()) == []


@pytest.mark.parametrize("factor", [0.4, 3.0])
def test_a_scaled_layer_of_one_sample(factor: float) -> None:
    values = statistics(500)
    for name in COLUMNS:
        values[name][123, 2] *= factor
    (found,) = profile(values).scaled(FLOORS, log_threshold(2000))
    assert (found.position, found.layer) == (123, 9)
    assert found.factor == pytest.approx(factor, rel=0.3)


def test_a_text_of_another_kind_moves_its_statistics_apart() -> None:
    values = statistics(500)
    values["rms"][7] *= 3
    values["absmax"][8] *= 5
    values["min_row_rms"][9] *= 0.3
    assert profile(values).scaled(FLOORS, log_threshold(2000)) == []


def test_equal_samples_and_layers() -> None:
    values = statistics(500)
    for name in ("length", *COLUMNS):
        values[name][40] = values[name][300]
    for name in COLUMNS:
        values[name][7, 1] = values[name][7, 2]
    found = profile(values)
    assert [set(pair) for pair in found.equal_samples()] == [{40, 300}]
    assert list(found.equal_layers()) == [(6, 9, [7])]


def test_twins_are_named_unless_their_tokens_are_equal(tmp_path: Path) -> None:
    manifest = small_manifest()
    samples = random_samples(6, manifest, 40)
    samples[1].hidden_states = samples[0].hidden_states
    samples[1].input_ids = samples[0].input_ids + 1
    samples[1].loss_mask = samples[0].loss_mask
    samples[3].hidden_states = samples[2].hidden_states
    samples[3].input_ids, samples[3].loss_mask = samples[2].input_ids, samples[2].loss_mask
    dataset = open_dataset(write_set(tmp_path / "set", samples, manifest))
    found = index_findings(ProbeSet(dataset), dict.fromkeys(manifest.layers, 0.5), [])
    assert {(f.kind, f.sample_id) for f in found} == {
        ("duplicate_rows", "s0"),
        ("duplicate_rows", "s1"),
    }


def test_the_witness_of_every_sample_not_of_the_probed_ones_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_set, "MAX_SAMPLES", 8)
    monkeypatch.setattr("eagle3data.validation.witness_checks.SAMPLES_AT_ONCE", 16)
    head = TargetHead(
        norm_weight=torch.ones(HIDDEN),
        norm_eps=1e-5,
        norm_offset=0,
        lm_head=torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(0)),
    )
    manifest = small_manifest()
    samples = random_samples(50, manifest, 30)
    for sample in samples:
        last = torch.from_numpy(sample.hidden_states[12][-1:])
        logprobs = head.logits(last).log_softmax(-1)[0]
        sample.witness_token = int(logprobs.argmax())
        sample.witness_logprob = float(logprobs.max())
    wrong = 33
    samples[wrong].witness_token = int(logprobs.argmin())
    samples[40].witness_token = samples[40].witness_logprob = None
    probe = ProbeSet(open_dataset(write_set(tmp_path / "set", samples, manifest)))
    assert len(probe) == 8
    assert wrong not in probe.positions
    checks = WitnessChecks(probe, head, set())
    found = checks.run(foretells=True, already_wrong=False)
    assert [(finding.kind, finding.sample_id) for finding in found] == [
        ("witness_mismatch", f"s{wrong}")
    ]
    assert checks.measured is not None
    assert (checks.measured.samples, checks.measured.agreeing) == (49, 48)
    assert len(checks.measured.difference) == 101
