"""Reading: by position and id, fewer layers, newer parts, damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3data import open_dataset
from eagle3data.readers.overview import describe_sample, overview, statistics
from eagle3data.schema.digest import json_digest
from eagle3data.schema.errors import CorruptionError, InputError, ManifestError
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from tests.support import random_samples, same_sample, small_manifest, write_set

MANIFEST = small_manifest()
SAMPLES = random_samples(15, MANIFEST)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return write_set(tmp_path / "set", SAMPLES, MANIFEST)


def test_positions_and_ids(url: str) -> None:
    dataset = open_dataset(url)
    assert len(dataset) == 15
    assert same_sample(dataset[-1], SAMPLES[-1])
    assert same_sample(dataset.get("s3"), SAMPLES[3])
    with pytest.raises(IndexError):
        dataset[15]
    with pytest.raises(KeyError):
        dataset.get("nobody")


def test_fewer_layers(url: str) -> None:
    dataset = open_dataset(url)
    assert list(dataset.read(0, layers=[12]).hidden_states) == [12]
    with pytest.raises(InputError, match=r"not \[3\]"):
        dataset.read(0, layers=[3])


def test_parts_that_all_arrow_lacks_are_read(url: str) -> None:
    whole = open_dataset(url)
    Root(url).delete(layout.ALL_PARTS)
    alone = open_dataset(url)
    assert alone.index.equals(whole.index)
    assert alone.generation == whole.generation


def test_a_damaged_state_is_an_error_not_a_number(url: str) -> None:
    path = Path(url) / layout.shard_object(layout.states_array(6), 0)
    damaged = bytearray(path.read_bytes())
    damaged[40] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(CorruptionError, match=r"array hidden_states/6, shard 0, chunk 0"):
        open_dataset(url)[0]
    assert same_sample(open_dataset(url)[-1], SAMPLES[-1])


def test_an_index_of_other_tokens_is_found(url: str) -> None:
    path = Path(url) / layout.ALL_PARTS
    ids = np.asarray(SAMPLES[0].input_ids, "<i4").tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(ids)] ^= 1
    path.write_bytes(data)
    assert open_dataset(url).index["input_ids"][0].as_py() != SAMPLES[0].input_ids.tolist()
    with pytest.raises(CorruptionError, match="tokens_differ"):
        open_dataset(url)[0]


def test_a_truncated_part_is_named(url: str) -> None:
    Root(url).delete(layout.ALL_PARTS)
    part = Path(url) / layout.index_part(1)
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(CorruptionError, match=r"index/00000001\.arrow"):
        open_dataset(url)


def test_files_and_folders_that_are_no_data_set(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "zarr.json").mkdir(parents=True)
    for wrong in (tmp_path / "file", tmp_path / "odd", tmp_path / "nowhere"):
        with pytest.raises(InputError, match="holds no data set"):
            open_dataset(str(wrong))
    (Path(url) / "zarr.json").write_text('{"attributes": null}')
    with pytest.raises(ManifestError, match="no eagle3data manifest"):
        open_dataset(url)


def test_a_folder_in_place_of_an_object(url: str) -> None:
    path = Path(url) / layout.shard_object(layout.states_array(6), 0)
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptionError, match="object_"):
        open_dataset(url)[0]


def test_a_future_major_is_refused(url: str) -> None:
    path = Path(url) / "zarr.json"
    group = json.loads(path.read_text())
    manifest = {**group["attributes"]["eagle3data"], "version": "2.0"}
    group["attributes"] = {"eagle3data": manifest, "eagle3data_digest": json_digest(manifest)}
    path.write_text(json.dumps(group))
    with pytest.raises(ManifestError, match="Upgrade"):
        open_dataset(url)


def test_a_manifest_that_was_changed_is_refused(url: str) -> None:
    path = Path(url) / "zarr.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 12', '"num_hidden_layers": 13'))
    with pytest.raises(ManifestError, match="not the one that was written"):
        open_dataset(url)


def test_facts_agree_with_the_samples(url: str) -> None:
    dataset = open_dataset(url)
    facts = overview(dataset)
    assert facts["samples"] == 15
    assert facts["tokens"] == sum(len(sample) for sample in SAMPLES)
    assert facts["loss_tokens"] == sum(int(sample.loss_mask.sum()) for sample in SAMPLES)
    on_disk = [path for path in Path(url).rglob("c/*") if path.is_file()]
    on_disk += list(Path(url).rglob("c/*/0"))
    assert facts["bytes"] == sum(path.stat().st_size for path in on_disk)
    assert facts["arithmetic"]["state_bytes"] == facts["tokens"] * 4 * 32 * 2
    layer = statistics(dataset)["layers"][0]
    largest = max(np.abs(sample.hidden_states[2]).max() for sample in SAMPLES)
    assert layer["absmax"] == pytest.approx(float(largest))
    shown = describe_sample(dataset, 4)
    assert shown["input_ids"] == SAMPLES[4].input_ids.tolist()
    norms = np.linalg.norm(SAMPLES[4].hidden_states[2].astype(np.float32), axis=1)
    assert shown["layers"][0]["max"] == pytest.approx(float(norms.max()), rel=1e-5)
