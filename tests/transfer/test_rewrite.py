"""Copies that are written anew: transcoded, chosen, merged; and what they leave behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from eagle3data import open_dataset, validate
from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import CorruptionError, InputError, LayerError, MismatchError
from eagle3data.schema.manifest import Codec
from eagle3data.storage import layout
from eagle3data.storage.ledger import read_ledger
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury
from eagle3data.transfer.copy import CopyOptions, plan_copy
from tests.support import random_sample, same_sample, small_manifest, write_set
from tests.transfer.support import array_objects, copy_set, files, flip_bit, valid_samples


@pytest.fixture
def source(tmp_path: Path) -> str:
    manifest = small_manifest()
    samples = [
        *valid_samples(20, manifest),
        random_sample(
            "rich",
            70,
            77,
            manifest,
            source="a.jsonl:3",
            split="eval",
            source_extra={"topic": "code", "lang": "en"},
            witness_token=5,
            witness_logprob=-0.25,
        ),
    ]
    return write_set(tmp_path / "source", samples, manifest)


def _require_equal(copy: Dataset, source: Dataset, ids: Sequence[str | None]) -> None:
    """Samples in this order, equal to the bit in arrays and in every column but the offset."""
    assert copy.index["sample_id"].to_pylist() == ids
    for name in ids:
        assert same_sample(copy.get(str(name)), source.get(str(name)))
    at = [source.position(str(name)) for name in ids]
    columns = [name for name in source.index.column_names if name != "token_offset"]
    assert copy.index.select(columns).equals(source.index.select(columns).take(at))


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.PCODEC])
def test_transcoding_keeps_every_bit_there_and_back(
    source: str, tmp_path: Path, codec: str
) -> None:
    url = str(tmp_path / "copy")
    copy_set(source, url, CopyOptions(codec=codec))
    original, copy = open_dataset(source), open_dataset(url)
    ids = original.index["sample_id"].to_pylist()
    assert copy.manifest.storage.codec == codec
    _require_equal(copy, original, ids)
    assert validate(url, level="full").ok
    group: Any = zarr.open_group(url, mode="r")
    for row in copy.index.to_pylist():
        at = slice(row["token_offset"], row["token_offset"] + row["length"])
        sample = original.get(row["sample_id"])
        np.testing.assert_array_equal(group["input_ids"][at], sample.input_ids)
        for layer, states in sample.hidden_states.items():
            np.testing.assert_array_equal(group[f"hidden_states/{layer}"][at], states)
    copy_set(url, tmp_path / "back", CopyOptions(codec="none"))
    _require_equal(open_dataset(str(tmp_path / "back")), original, ids)


def test_bfloat16_is_transcoded_to_the_bit(tmp_path: Path) -> None:
    manifest = small_manifest(storage_dtype="bfloat16")
    sample = random_sample("wide", 40, 0, manifest)
    rng = np.random.default_rng(0)
    for layer in manifest.layers:
        bits = rng.integers(0x3000, 0x4F00, (40, manifest.hidden_size)).astype(np.uint16)
        sample.hidden_states[layer] = bits
    source = write_set(tmp_path / "source", [sample], manifest)
    copy_set(source, tmp_path / "copy", CopyOptions(codec="pcodec"))
    assert same_sample(open_dataset(str(tmp_path / "copy"))[0], sample)


def test_where_and_layers(source: str, tmp_path: Path) -> None:
    url = str(tmp_path / "copy")
    where = "length >= 40 and split == 'train'"
    copy_set(source, url, CopyOptions(where=where, layers="6,12"))
    original, copy = open_dataset(source), open_dataset(url)
    rows = original.index.to_pylist()
    ids = [row["sample_id"] for row in rows if row["length"] >= 40 and row["split"] == "train"]
    assert 3 < len(ids) < len(rows)
    assert copy.index["sample_id"].to_pylist() == ids
    assert copy.manifest.layers == [6, 12]
    for name in ids:
        wanted = original.read(original.position(name), [6, 12])
        assert same_sample(copy.get(name), wanted)
    assert json.loads(copy.manifest.provenance["copy"])["where"] == where
    assert validate(url, level="full").ok
    with pytest.raises(LayerError, match="has layers 2,6,9,12, not 3"):
        plan_copy([source], str(tmp_path / "x"), CopyOptions(layers="3,12"))
    with pytest.raises(InputError, match="no sample is left"):
        plan_copy([source], str(tmp_path / "x"), CopyOptions(where="length > 1000"))


def test_what_is_dropped_leaves_nothing(source: str, tmp_path: Path) -> None:
    root, url = Root(source), str(tmp_path / "copy")
    original = open_dataset(source)
    secret = original.get("rich")
    bury(root, shard=0, sample_id="s0", kind="chunk_corrupt", reason="a test")
    hidden = original.get("s0")
    copy_set(source, url, CopyOptions(drop=["rich", "s0"]))
    copied = files(url)
    assert not [name for name in copied if name.startswith(("quarantine/", "ledger/"))]
    found_in_source = 0
    for sample in (secret, hidden):
        traces = [
            sample.sample_id.encode() if sample is secret else b"quarantine",
            sample.input_ids[:8].tobytes(),
            *(states[0].tobytes() for states in sample.hidden_states.values()),
        ]
        for trace in traces:
            found_in_source += any(trace in data for data in files(source).values())
            assert not any(trace in data for data in copied.values())
    assert found_in_source >= 10
    assert len(open_dataset(url)) == len(original) - 2
    assert not [path for path in Path(url, ".tmp").rglob("*") if path.is_file()]


def test_an_unknown_id_to_drop_is_refused_before_anything_is_written(
    source: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no source has nobody"):
        plan_copy([source], str(tmp_path / "copy"), CopyOptions(drop=["rich", "nobody"]))
    assert not (tmp_path / "copy").exists()


def test_compacting_leaves_hidden_samples_behind(source: str, tmp_path: Path) -> None:
    bury(Root(source), shard=0, sample_id="s0", kind="chunk_corrupt", reason="a test")
    copy_set(source, tmp_path / "copy", CopyOptions(compact=True))
    copy, original = open_dataset(str(tmp_path / "copy")), open_dataset(source)
    _require_equal(copy, original, original.index["sample_id"].to_pylist())
    assert not (tmp_path / "copy" / "quarantine").exists()


def test_merging_keeps_the_order_and_refuses_what_does_not_belong(
    source: str, tmp_path: Path
) -> None:
    packed = small_manifest(codec="lz4", shard_tokens=256)
    more = [random_sample(f"m{number}", 90, 100 + number, packed) for number in range(4)]
    second = write_set(tmp_path / "second", [*more, valid_samples(20, packed)[3]], packed)
    with pytest.raises(InputError, match=r"1 samples occur twice .* s3"):
        plan_copy([source, second], str(tmp_path / "copy"), CopyOptions())
    url = str(tmp_path / "copy")
    copy_set([source, second], url, CopyOptions(skip_duplicates=True))
    ids = open_dataset(source).index["sample_id"].to_pylist()
    copy = open_dataset(url)
    assert copy.index["sample_id"].to_pylist() == [*ids, "m0", "m1", "m2", "m3"]
    assert all(same_sample(copy.get(sample.sample_id), sample) for sample in more)
    assert copy.manifest.storage.codec is Codec.NONE
    assert validate(url, level="full").ok
    fewer = small_manifest(layers=[2, 12])
    third = write_set(tmp_path / "third", [random_sample("f", 9, 0, fewer)], fewer)
    with pytest.raises(MismatchError, match=r"capture\.layers: \[2, 6, 9, 12\], \[2, 12\]"):
        plan_copy([source, third], str(tmp_path / "x"), CopyOptions())
    common = CopyOptions(layers="2,12")
    assert copy_set([source, third], tmp_path / "x", common).samples == len(ids) + 1


def test_again_is_a_no_op_and_another_choice_is_refused(source: str, tmp_path: Path) -> None:
    url = str(tmp_path / "copy")
    copy_set(source, url, CopyOptions(where="length > 20"))
    before = files(url)
    assert copy_set(source, url, CopyOptions(where="length > 20")).written == 0
    assert files(url) == before
    with pytest.raises(MismatchError, match=r"where: length > 20, length > 30"):
        copy_set(source, url, CopyOptions(where="length > 30"))
    with pytest.raises(MismatchError, match=r"storage\.codec: none, lz4"):
        copy_set(source, url, CopyOptions(where="length > 20", codec="lz4"))
    bury(Root(source), shard=0, sample_id="s0", kind="chunk_corrupt", reason="a test")
    with pytest.raises(MismatchError, match="sources: "):
        copy_set(source, url, CopyOptions(where="length > 20"))
    assert files(url) == before


def test_the_same_choice_makes_the_same_bytes(source: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        copy_set(source, tmp_path / name, CopyOptions(codec="pcodec"))
    assert array_objects(tmp_path / "a") == array_objects(tmp_path / "b")


def test_a_damaged_sample_stops_or_is_skipped(source: str, tmp_path: Path) -> None:
    original = open_dataset(source)
    axis = original.manifest.storage.axis
    offset, length = (int(original.index[name][5].as_py()) for name in ("token_offset", "length"))
    shard, name = axis.shard_of(offset), str(original.index["sample_id"][5].as_py())
    array = layout.states_array(12)
    chunk = axis.chunks_of(offset, length)[-1]
    at = int(original.shard_reader(array, shard).index[chunk, 0])
    flip_bit(Root(source), layout.shard_object(array, shard), at)
    with pytest.raises(CorruptionError) as caught:
        copy_set(source, tmp_path / "stopped", CopyOptions(codec="lz4"))
    assert (caught.value.sample_id, caught.value.chunk) == (name, chunk)
    url = str(tmp_path / "skipped")
    report = copy_set(source, url, CopyOptions(codec="lz4", skip_damaged=True))
    assert (report.failed, report.samples) == (1, len(original) - 1)
    ids = [found for found in original.index["sample_id"].to_pylist() if found != name]
    _require_equal(open_dataset(url), original, ids)
    (row,) = read_ledger(Root(url))
    assert (row["sample_id"], row["kind"]) == (name, "chunk_corrupt")
    assert validate(url, level="full").ok
    alone = copy_set(source, tmp_path / "alone", CopyOptions(skip_damaged=True))
    assert alone.failed == 1


def test_states_of_another_attempt_are_not_laundered(source: str, tmp_path: Path) -> None:
    """Chunks of a second attempt are whole, but they are not what the index describes."""
    manifest = small_manifest()
    others = [random_sample(f"s{number}", 100, 500 + number, manifest) for number in range(3)]
    mine = [random_sample(f"s{number}", 100, number, manifest) for number in range(3)]
    one = write_set(tmp_path / "one", mine, manifest)
    other = write_set(tmp_path / "other", others, manifest)
    name = layout.shard_object(layout.states_array(6), 1)
    Path(one, name).write_bytes(Path(other, name).read_bytes())
    with pytest.raises(CorruptionError, match=r"object_changed.*hidden_states/6.*sample s1"):
        copy_set(one, tmp_path / "copy", CopyOptions(codec="lz4"))
    report = copy_set(one, tmp_path / "rest", CopyOptions(codec="lz4", skip_damaged=True))
    assert (report.failed, report.samples) == (1, 2)


def test_s3_to_s3(bucket: str, source: str, tmp_path: Path) -> None:
    away = f"{bucket}/{tmp_path.name}"
    copy_set(source, f"{away}/one", CopyOptions())
    copy_set(f"{away}/one", f"{away}/two", CopyOptions(codec="lz4", drop=["s1"]))
    original = open_dataset(source)
    ids = [name for name in original.index["sample_id"].to_pylist() if name != "s1"]
    _require_equal(open_dataset(f"{away}/two"), original, ids)
