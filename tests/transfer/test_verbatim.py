"""The copy that is the same set: every byte, at every kind of place, or an error."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from eagle3data import DatasetWriter, open_dataset, validate
from eagle3data.schema.errors import CorruptionError, InputError, MismatchError
from eagle3data.schema.manifest import Codec
from eagle3data.storage import layout
from eagle3data.storage.ledger import record_failure
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury
from eagle3data.transfer.copy import CopyOptions, plan_copy
from tests.support import random_sample, small_manifest, write_set
from tests.transfer.support import array_objects, copy_set, files, flip_bit, valid_samples

AS_IT_IS = CopyOptions()


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write_set(tmp_path / "source", valid_samples(20, small_manifest()), small_manifest())


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.parametrize("codec", list(Codec))
def test_the_copy_is_the_same_to_the_byte(tmp_path: Path, codec: str) -> None:
    manifest = small_manifest(codec=codec)
    source = write_set(tmp_path / "source", valid_samples(20, manifest), manifest)
    record_failure(Root(source), shard=1, sample_id="x", kind="nonfinite", reason="2 NaN states.")
    bury(Root(source), shard=0, sample_id="s0", kind="chunk_corrupt", reason="a test")
    report = copy_set(source, tmp_path / "copy", AS_IT_IS)
    assert files(tmp_path / "copy") == files(source)
    assert report.generation == open_dataset(source).generation
    assert report.written == report.shards > 3
    dataset = open_dataset(str(tmp_path / "copy"))
    assert "s0" not in dataset.index["sample_id"].to_pylist()
    group: Any = zarr.open_group(str(tmp_path / "copy"), mode="r")
    row = dataset.index.slice(3, 1).to_pylist()[0]
    at = slice(row["token_offset"], row["token_offset"] + row["length"])
    np.testing.assert_array_equal(group["hidden_states/6"][at], dataset[3].hidden_states[6])


def test_a_finished_copy_is_left_alone_and_follows_its_source(source: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy_set(source, copy, AS_IT_IS)
    before = files(copy)
    assert copy_set(source, copy, AS_IT_IS).written == 0
    assert files(copy) == before
    with DatasetWriter.resume(source) as writer:
        for number in range(3):
            writer.append(random_sample(f"more{number}", 100, number, writer.manifest))
    preview = plan_copy([source], str(copy), AS_IT_IS).preview
    assert copy_set(source, copy, AS_IT_IS).written == preview.missing == 3
    assert files(copy) == files(source)
    assert validate(str(copy), level="full").ok


def test_memory_and_back(source: str, tmp_path: Path) -> None:
    away = f"memory://{tmp_path.name}-copy"
    copy_set(source, away, AS_IT_IS)
    copy_set(away, tmp_path / "back", AS_IT_IS)
    assert files(tmp_path / "back") == files(source)


def test_s3_and_back(bucket: str, source: str, tmp_path: Path) -> None:
    away = f"{bucket}/{tmp_path.name}"
    copy_set(source, away, AS_IT_IS)
    assert open_dataset(away).generation == open_dataset(source).generation
    assert copy_set(source, away, AS_IT_IS).written == 0
    copy_set(away, tmp_path / "back", AS_IT_IS)
    assert files(tmp_path / "back") == files(source)


def test_a_flipped_bit_stops_the_copy_or_changes_nothing(source: str, tmp_path: Path) -> None:
    """In an object every bit counts; an index part has padding, and says who wrote it when."""
    root, original = Root(source), open_dataset(source)
    rng = random.Random(0)
    objects = [name for name in files(source) if "/c/" in name]
    parts = [layout.index_part(shard) for shard in layout.committed_shards(root)]
    harmless = 0
    for number in range(60):
        name = rng.choice(objects if number % 2 else parts)
        at = rng.randrange(root.size(name) or 0)
        flip_bit(root, name, at)
        target = str(tmp_path / str(number))
        try:
            copy_set(source, target, AS_IT_IS)
        except (CorruptionError, InputError):
            pass
        else:
            harmless += 1
            assert name in parts
            assert open_dataset(target).index.equals(original.index)
            assert array_objects(target) == array_objects(source)
        flip_bit(root, name, at)
    assert harmless < 20
    copy_set(source, tmp_path / "whole", AS_IT_IS)
    assert files(tmp_path / "whole") == files(source)


def test_the_error_names_chunk_and_sample_and_the_rest_is_kept(source: str, tmp_path: Path) -> None:
    dataset = open_dataset(source)
    axis = dataset.manifest.storage.axis
    offset, length = (int(dataset.index[name][9].as_py()) for name in ("token_offset", "length"))
    shard, name = axis.shard_of(offset), dataset.index["sample_id"][9].as_py()
    damaged = layout.shard_object(layout.states_array(9), shard)
    chunk = axis.chunks_of(offset, length)[0]
    at = int(dataset.shard_reader(layout.states_array(9), shard).index[chunk, 0])
    flip_bit(Root(source), damaged, at)
    with pytest.raises(CorruptionError) as caught:
        copy_set(source, tmp_path / "copy", AS_IT_IS)
    error = caught.value
    assert (error.kind, error.shard, error.chunk) == ("chunk_corrupt", shard, chunk)
    assert (error.array, error.sample_id) == ("hidden_states/9", name)
    kept = Root(str(tmp_path / "copy"))
    assert layout.committed_shards(kept) == list(range(shard))
    assert not any(f"/c/{shard}" in found for found in files(tmp_path / "copy"))
    flip_bit(Root(source), damaged, at)
    copy_set(source, tmp_path / "copy", AS_IT_IS)
    assert files(tmp_path / "copy") == files(source)


def test_whole_chunks_of_another_attempt_are_found(source: str, tmp_path: Path) -> None:
    """An engine's second attempt: every checksum in it is right."""
    manifest = small_manifest()
    others = valid_samples(20, manifest)
    for sample in others:
        sample.hidden_states[6] = np.roll(sample.hidden_states[6], 1, axis=1)
    other = write_set(tmp_path / "other", others, manifest)
    name = layout.shard_object(layout.states_array(6), 2)
    Path(source, name).write_bytes(Path(other, name).read_bytes())
    with pytest.raises(CorruptionError, match="not those that were committed"):
        copy_set(source, tmp_path / "copy", AS_IT_IS)


def test_leftovers_of_a_killed_copy_are_replaced(source: str, tmp_path: Path) -> None:
    copy = Root(str(tmp_path / "copy"))
    copy_set(source, copy.url, AS_IT_IS)
    copy.delete(layout.index_part(1))
    copy.delete(layout.ALL_PARTS)
    Path(copy.join(layout.shard_object(layout.states_array(2), 1))).write_bytes(b"torn")
    assert copy_set(source, copy.url, AS_IT_IS).written == 1
    assert files(copy.url) == files(source)


def test_places_that_are_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one lies in the other"):
        plan_copy([source], source, AS_IT_IS)
    with pytest.raises(InputError, match="one lies in the other"):
        plan_copy([source], f"{source}/index/copy", AS_IT_IS)
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(InputError, match="one lies in the other"):
        plan_copy([source], str(tmp_path / "link" / "copy"), AS_IT_IS)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x")
    with pytest.raises(InputError, match=r"holds something else \(cat\.jpg\)"):
        plan_copy([source], str(tmp_path / "photos"), AS_IT_IS)
    with pytest.raises(InputError, match="holds no data set"):
        plan_copy([str(tmp_path / "nothing")], str(tmp_path / "copy"), AS_IT_IS)


def test_other_sets_are_left_as_they_are(source: str, tmp_path: Path) -> None:
    manifest = small_manifest()
    others = valid_samples(20, manifest)
    for sample in others:
        sample.hidden_states[6] = np.roll(sample.hidden_states[6], 1, axis=1)
        sample.input_ids[0] = 3
    same_kind = write_set(tmp_path / "same_kind", others, manifest)
    with pytest.raises(MismatchError, match="other samples"):
        copy_set(source, same_kind, AS_IT_IS)
    longer = write_set(tmp_path / "longer", valid_samples(60, manifest), manifest)
    with pytest.raises(MismatchError, match="has shards that"):
        copy_set(source, longer, AS_IT_IS)
    packed = small_manifest(codec="lz4")
    other = write_set(tmp_path / "other", valid_samples(20, packed), packed)
    before = files(other)
    with pytest.raises(MismatchError, match=r"storage\.codec: lz4, none"):
        copy_set(source, other, AS_IT_IS)
    assert files(other) == before
