"""Writing samples one by one: what is refused, what survives, what comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3data import DatasetWriter, Manifest, Sample, open_dataset
from eagle3data.schema.errors import (
    AlreadyExistsError,
    InputError,
    ManifestError,
    MismatchError,
    SampleError,
)
from eagle3data.schema.manifest import Codec
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import create_data_set
from tests.support import random_sample, random_samples, same_sample, small_manifest, write_set


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("where", ["local", "memory"])
def test_what_goes_in_comes_out_and_stock_zarr_agrees(
    tmp_path: Path, codec: str, where: str
) -> None:
    manifest = small_manifest(codec=codec)
    samples = random_samples(30, manifest)
    url = str(tmp_path / "set") if where == "local" else f"memory://{tmp_path.name}-{codec}"
    dataset = open_dataset(write_set(url, samples, manifest))
    assert [dataset.get(sample.sample_id).sample_id for sample in samples] == [
        sample.sample_id for sample in samples
    ]
    assert all(same_sample(dataset.get(sample.sample_id), sample) for sample in samples)
    if where == "local":
        group: Any = zarr.open_group(url, mode="r")
        for row in range(len(dataset)):
            offset, length = (
                dataset.index[name][row].as_py() for name in ("token_offset", "length")
            )
            at = slice(offset, offset + length)
            for layer, states in dataset[row].hidden_states.items():
                np.testing.assert_array_equal(group[f"hidden_states/{layer}"][at], states)
            np.testing.assert_array_equal(group["input_ids"][at], dataset[row].input_ids)
            np.testing.assert_array_equal(group["loss_mask"][at], dataset[row].loss_mask)


@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(1, 128), min_size=1, max_size=12))
def test_any_lengths(tmp_path_factory: pytest.TempPathFactory, lengths: list[int]) -> None:
    manifest = small_manifest()
    samples = [random_sample(f"s{n}", t, n, manifest) for n, t in enumerate(lengths)]
    dataset = open_dataset(write_set(tmp_path_factory.mktemp("set") / "x", samples, manifest))
    assert dataset.index["sample_id"].to_pylist() == [sample.sample_id for sample in samples]
    assert all(same_sample(a, b) for a, b in zip(dataset, samples, strict=True))


def test_bfloat16_is_kept_to_the_bit(tmp_path: Path) -> None:
    manifest = small_manifest(storage_dtype="bfloat16")
    states = torch.randn(20, manifest.hidden_size).mul(1e5).bfloat16()
    sample = Sample(
        hidden_states=dict.fromkeys(manifest.layers, states),
        input_ids=torch.arange(20),
        loss_mask=torch.ones(20, dtype=torch.bool),
        sample_id="wide",
    )
    dataset = open_dataset(write_set(tmp_path / "set", [sample], manifest))
    read = dataset[0].hidden_states[manifest.layers[0]]
    assert read.dtype == np.uint16
    assert torch.equal(torch.from_numpy(read).view(torch.bfloat16), states)


def test_float32_is_cast_and_an_overflow_refused(tmp_path: Path) -> None:
    manifest = small_manifest()
    sample = random_sample("s", 5, 0, manifest)
    sample.hidden_states = {k: v.astype(np.float32) for k, v in sample.hidden_states.items()}
    with DatasetWriter.create(str(tmp_path / "set"), manifest) as writer:
        writer.append(sample)
        sample.sample_id = "t"
        sample.hidden_states[2] = sample.hidden_states[2].astype(np.float32)
        sample.hidden_states[2][3, 3] = 1e6
        with pytest.raises(SampleError, match="infinite") as caught:
            writer.append(sample)
    assert caught.value.kind == "saturated"
    assert len(open_dataset(str(tmp_path / "set"))) == 1


def _shorter(sample: Sample) -> None:
    sample.hidden_states[2] = sample.hidden_states[2][:-1]


def _nan(sample: Sample) -> None:
    sample.hidden_states[6][4, 4] = np.nan


def _zero(sample: Sample) -> None:
    sample.hidden_states[9][:] = 0


def _mask(sample: Sample) -> None:
    sample.loss_mask[0] = 2


def _ids(sample: Sample) -> None:
    sample.input_ids[0] = 10_000


def _layer(sample: Sample) -> None:
    sample.hidden_states = {k: v for k, v in sample.hidden_states.items() if k != 12}


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (_shorter, "length_mismatch"),
        (_nan, "nonfinite"),
        (_zero, "all_zero"),
        (_mask, "mask_invalid"),
        (_ids, "tokens_invalid"),
        (_layer, "layers_mismatch"),
    ],
)
def test_bad_samples_are_refused_and_the_rest_goes_on(
    tmp_path: Path, spoil: Callable[[Sample], None], kind: str
) -> None:
    manifest = small_manifest()
    bad = random_sample("bad", 10, 1, manifest)
    spoil(bad)
    with DatasetWriter.create(str(tmp_path / "set"), manifest) as writer:
        writer.append(random_sample("good", 10, 0, manifest))
        with pytest.raises(SampleError, match="sample bad") as caught:
            writer.append(bad)
        writer.append(random_sample("other", 10, 2, manifest))
    assert caught.value.kind == kind
    ids = open_dataset(str(tmp_path / "set")).index["sample_id"].to_pylist()
    assert ids == ["good", "other"]


def test_resume_appends_and_keeps_ids_unique(tmp_path: Path) -> None:
    manifest = small_manifest()
    samples = random_samples(12, manifest)
    url = write_set(tmp_path / "set", samples[:7], manifest)
    with DatasetWriter.resume(url) as writer:
        with pytest.raises(SampleError, match="has a sample of this id"):
            writer.append(samples[3])
        for sample in samples[7:]:
            writer.append(sample)
    dataset = open_dataset(url)
    assert all(same_sample(a, b) for a, b in zip(dataset, samples, strict=True))


def test_an_exception_keeps_what_was_committed(tmp_path: Path) -> None:
    manifest = small_manifest()
    url = str(tmp_path / "set")

    def fail() -> None:
        with DatasetWriter.create(url, manifest) as writer:
            for number in range(5):
                writer.append(random_sample(f"s{number}", 100, number, manifest))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(open_dataset(url)) == 4
    with DatasetWriter.resume(url) as writer:
        writer.append(random_sample("s4", 100, 4, manifest))
    assert len(open_dataset(url)) == 5


def test_places_that_hold_something_else(tmp_path: Path) -> None:
    manifest = small_manifest()
    url = write_set(tmp_path / "set", random_samples(2, manifest), manifest)
    with pytest.raises(AlreadyExistsError, match="resume"):
        DatasetWriter.create(url, manifest)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x")
    with pytest.raises(InputError, match=r"holds something else \(cat\.jpg\)"):
        DatasetWriter.create(str(tmp_path / "photos"), manifest)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]
    zarr.create_group(str(tmp_path / "zarr"))
    with pytest.raises(ManifestError, match="no eagle3data manifest"):
        DatasetWriter.resume(str(tmp_path / "zarr"))
    with pytest.raises(InputError, match="holds no data set"):
        open_dataset(str(tmp_path / "nowhere"))


def test_another_model_is_refused(tmp_path: Path) -> None:
    url = write_set(tmp_path / "set", random_samples(2, small_manifest()), small_manifest())
    other = Manifest.synthetic(
        hidden_size=32, num_hidden_layers=13, vocab_size=500, axis=small_manifest().storage.axis
    )
    with pytest.raises(MismatchError, match=r"target\.num_hidden_layers: 12, 13"):
        create_data_set(Root(url), other, 1)
