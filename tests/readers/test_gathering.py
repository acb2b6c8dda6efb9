"""Small samples read together: the same bytes as one by one, and the same errors."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3data import Batch, Dataset, StreamingLoader, open_dataset
from eagle3data.readers import filling
from eagle3data.readers.reading import Reading
from eagle3data.readers.stated import Stated
from eagle3data.readers.together import Together
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.crc32c import RowChecksums
from eagle3data.schema.digest import crc32c
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.index import list_values
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from tests.support import random_sample, write_set

LENGTHS = (1, 15, 16, 17, 64, 200, 7, 33)
BUDGET = sum(LENGTHS)
LAYER = 2
TOGETHER = [True] * 5
"""Four layers, and tokens."""


def _set(
    url: Path,
    hidden: int = 8,
    *,
    storage_dtype: str = "float16",
    codec: str = "none",
    chunk_tokens: int = 16,
) -> Dataset:
    manifest = Manifest.synthetic(
        hidden_size=hidden,
        num_hidden_layers=9,
        vocab_size=500,
        axis=TokenAxis(shard_tokens=512, chunk_tokens=chunk_tokens),
        storage_dtype=storage_dtype,
        codec=codec,
    )
    samples = [
        random_sample(f"s{number}", length, number, manifest)
        for number, length in enumerate(LENGTHS)
    ]
    return open_dataset(write_set(url, samples, manifest))


def _batch(dataset: Dataset, **settings: Any) -> Batch:
    (batch,) = StreamingLoader(dataset, token_budget=BUDGET, **settings)
    return batch


def _count(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What came of every attempt to read an array of several samples together."""
    came: list[bool] = []
    states, tokens = Reading.gathered_states, Reading.gathered_tokens

    def counted_states(*arguments: Any) -> list[bool]:
        found = states(*arguments)
        came.extend(found)
        return found

    def counted_tokens(*arguments: Any) -> bool:
        came.append(tokens(*arguments))
        return came[-1]

    monkeypatch.setattr(Reading, "gathered_states", counted_states)
    monkeypatch.setattr(Reading, "gathered_tokens", counted_tokens)
    return came


def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Together, "stored", lambda *_: None)


def _require_same(together: Batch, alone: Batch) -> None:
    assert together.sample_ids == alone.sample_ids
    assert torch.equal(
        together.hidden_states.view(torch.int16), alone.hidden_states.view(torch.int16)
    )
    assert torch.equal(together.input_ids, alone.input_ids)
    assert torch.equal(together.loss_mask, alone.loss_mask)
    assert torch.equal(together.position_ids, alone.position_ids)
    assert torch.equal(together.document_ids, alone.document_ids)


@pytest.mark.parametrize("verify", ["bytes", "none"])
@pytest.mark.parametrize("hidden", [8, 6, 5, 1], ids=lambda hidden: f"rows of {2 * hidden} bytes")
def test_the_same_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: int, verify: str
) -> None:
    dataset = _set(tmp_path / "set", hidden)
    came = _count(monkeypatch)
    together = _batch(dataset, verify=verify)
    assert came == TOGETHER
    _one_by_one(monkeypatch)
    _require_same(together, _batch(dataset, verify=verify))


@pytest.mark.parametrize("chunks", [(16, 16), (16, 32), (4, 64), (1, 16)])
def test_several_sets_whose_chunks_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: tuple[int, int]
) -> None:
    sets = [_set(tmp_path / f"{number}", chunk_tokens=c) for number, c in enumerate(chunks)]
    came = _count(monkeypatch)
    (together,) = StreamingLoader(sets, token_budget=2 * BUDGET)
    # A checksum behind a mask of one byte is no word of its own.
    assert sorted(came) == sorted([chunks[0] > 1, *TOGETHER[1:]])
    _one_by_one(monkeypatch)
    (alone,) = StreamingLoader(sets, token_budget=2 * BUDGET)
    _require_same(together, alone)


def test_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that are not small stand between them, read by themselves."""
    dataset = _set(tmp_path / "set")
    monkeypatch.setattr(filling, "_SMALL_BYTES", 100 * 16)
    monkeypatch.setattr(filling, "_STATES_BYTES", 110 * 16)
    came = _count(monkeypatch)
    together = _batch(dataset, shuffle=False)
    assert came == [True] * 9  # 1, 15, 16 and 17 tokens; 7 and 33
    _one_by_one(monkeypatch)
    _require_same(together, _batch(dataset, shuffle=False))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_groups_hold_every_member_once(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 30), max_size=20))
    small, most = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 60))
    groups = list(filling._groups(lengths, small, most))
    assert [at for group in groups for at in group] == list(range(len(lengths)))
    for group in groups:
        own = lengths[group.start : group.stop]
        assert len(own) == 1 or (max(own) <= small and sum(own) <= most)


def test_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fill value has other bytes."""
    dataset = _set(tmp_path / "set", storage_dtype="bfloat16")
    came = _count(monkeypatch)
    batch = _batch(dataset)
    assert came == TOGETHER
    for number, name in enumerate(batch.sample_ids):
        rows = slice(*batch.cu_seqlens[number : number + 2].tolist())
        states = batch.hidden_states[:, rows].view(torch.uint16).numpy()
        stored = dataset.get(name).hidden_states
        assert all(np.array_equal(a, b) for a, b in zip(states, stored.values(), strict=True))


def test_compressed_sets_are_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = _set(tmp_path / "set", codec="lz4")
    came = _count(monkeypatch)
    _batch(dataset)
    assert came == []


@pytest.mark.parametrize("where", ["used", "checksum"])
def test_damage_is_one_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    dataset = _damaged(tmp_path / "set", where)
    came = _count(monkeypatch)
    with pytest.raises(CorruptionError, match="s3") as caught:
        _batch(dataset)
    assert came.count(False) == 1
    assert (caught.value.kind, caught.value.sample_id) == ("chunk_corrupt", "s3")
    batch = _batch(dataset, on_error="skip", ledger=str(tmp_path / "ledger.jsonl"))
    assert sorted(batch.sample_ids) == sorted({f"s{n}" for n in range(len(LENGTHS))} - {"s3"})
    assert "s3" not in _batch(dataset, on_error="skip", ledger=None).sample_ids
    for number, name in enumerate(batch.sample_ids):
        rows = slice(*batch.cu_seqlens[number : number + 2].tolist())
        states = batch.hidden_states[:, rows].numpy()
        stored = dataset.get(name).hidden_states
        assert all(np.array_equal(a, b) for a, b in zip(states, stored.values(), strict=True))


def test_layers_are_checked_also_beside_one_that_must_be_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = _damaged(tmp_path / "set", "used")
    stored, other = Together.stored, layout.states_array(dataset.manifest.layers[-1])

    def all_but_one(together: Together, array: str) -> Any:
        return None if array == other else stored(together, array)

    monkeypatch.setattr(Together, "stored", all_but_one)
    came = _count(monkeypatch)
    with pytest.raises(CorruptionError, match="s3"):
        _batch(dataset)
    assert came.count(False) == 2


def test_damage_where_no_row_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a sample in its last chunk is nobody's: its rows are whole, and told to be."""
    dataset = _damaged(tmp_path / "set", "unused")
    came = _count(monkeypatch)
    assert len(_batch(dataset).sample_ids) == len(LENGTHS)
    assert came == TOGETHER
    with pytest.raises(CorruptionError, match="s3"):
        dataset.get("s3")


def _damaged(folder: Path, where: str) -> Dataset:
    """A set with another bit in the last chunk of a sample of 17 tokens, which uses one row of it.

    It is in that row, behind it or in the CRC32C.
    """
    dataset = _set(folder)
    position = dataset.position("s3")
    chunks = dataset._axis.chunks_of(int(dataset.offsets[position]), 17)
    shard = dataset.shard_of(position)
    name = layout.states_array(LAYER)
    offset, size = dataset.shard_reader(name, shard).index[chunks.stop - 1].tolist()
    at = {"used": offset + 3, "unused": offset + size - 9, "checksum": offset + size - 2}[where]
    file = folder / layout.shard_object(name, shard)
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    return open_dataset(str(folder))


def test_tokens_that_differ_together_are_compared_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = _set(tmp_path / "set")
    stated = Stated.tokens

    def differ(*arguments: Any) -> Any:
        found = stated(*arguments)
        assert found is not None
        ids = found[0].copy()
        ids[-1] += 1
        return ids, found[1]

    monkeypatch.setattr(Stated, "tokens", differ)
    came = _count(monkeypatch)
    batch = _batch(dataset)  # one by one they are the index's
    assert len(batch.sample_ids) == len(LENGTHS)
    assert sorted(came) == [False, *TOGETHER[1:]]


@pytest.mark.parametrize("array", ["states", "ids", "mask"])
def test_damage_in_any_chunk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: str
) -> None:
    """One bit in the used rows of each chunk in turn."""
    dataset = _set(tmp_path / "set")
    name = {
        "states": layout.states_array(LAYER),
        "ids": layout.INPUT_IDS,
        "mask": layout.LOSS_MASK,
    }[array]
    chunks = 0
    for position in range(len(dataset)):
        shard = dataset.shard_of(position)
        file = tmp_path / "set" / layout.shard_object(name, shard)
        whole = file.read_bytes()
        index = dataset.shard_reader(name, shard).index
        for chunk in dataset._axis.chunks_of(
            int(dataset.offsets[position]), dataset.length(position)
        ):
            data = bytearray(whole)
            data[int(index[chunk, 0])] ^= 1
            file.write_bytes(data)
            came = _count(monkeypatch)
            with pytest.raises(CorruptionError) as caught:
                _batch(open_dataset(str(tmp_path / "set")))
            assert caught.value.sample_id == dataset.sample_id(position)
            assert came.count(False) == 1
            monkeypatch.undo()
            chunks += 1
        file.write_bytes(whole)
    assert chunks == sum(-(-length // 16) for length in LENGTHS)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from([b"\xff", b"\0\x7e" * 3, b"\1\2\3\4" * 300]),
    st.randoms(),
)
@settings(max_examples=40, deadline=None)
def test_the_checksum_of_rows_from_those_of_their_chunks(
    used: list[int], fill: bytes, random: Random
) -> None:
    rows = [random.randbytes(count * len(fill)) for count in used]
    filled = 9 - np.array(used)
    whole = [own + fill * int(count) for own, count in zip(rows, filled, strict=True)]
    behind = sum(used) - np.cumsum(used)
    checksums = np.array([[crc32c(chunk) for chunk in whole]], np.uint32)
    found = RowChecksums(fill, filled, behind, 9).joined(
        np.vstack([checksums, checksums ^ np.uint32(1)])
    )
    assert found[0] == crc32c(b"".join(rows)) != found[1]


def test_the_same_tokens_and_names_as_row_by_row(tmp_path: Path) -> None:
    """Of an index in many parts, that begin in the middle of others."""
    index = _set(tmp_path / "set").index
    parts = [index.slice(first, 3).combine_chunks() for first in (5, 0, 2)]
    table = pa.concat_tables([*parts, index.slice(1, 4), index])
    stated, rows = Stated(table), [0, 13, 4, 8, 10, 12, 3, 17, 17]
    lengths: list[int] = table["length"].to_numpy()[rows].tolist()
    found = stated.tokens(rows, lengths)
    assert found is not None
    for name, values in (("input_ids", found[0]), ("loss_mask", found[1])):
        column = table[name]
        assert values.tolist() == [value for row in rows for value in list_values(column, row)]
    names = table["sample_id"].to_pylist()
    assert [stated.sample_id(row) for row in rows] == [names[row] for row in rows]
    assert stated.tokens(rows, [*lengths[:-1], lengths[-1] + 1]) is None
