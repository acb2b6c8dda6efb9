"""Small samples read together: the same bytes as one by one, and the same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagle3data import Batch, Dataset, StreamingLoader, open_dataset
from eagle3data.readers.filling import Reading
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.crc32c import crc32c_of_beginning
from eagle3data.schema.digest import crc32c
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from tests.support import random_sample, write_set

LENGTHS = (1, 15, 16, 17, 64, 200, 7, 33)
BUDGET = sum(LENGTHS)
LAYER = 2


def _set(
    url: Path, hidden: int = 8, *, storage_dtype: str = "float16", codec: str = "none"
) -> Dataset:
    manifest = Manifest.synthetic(
        hidden_size=hidden,
        num_hidden_layers=9,
        vocab_size=500,
        axis=TokenAxis(shard_tokens=512, chunk_tokens=16),
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
    """What came of every attempt to read several samples together."""
    came: list[bool] = []
    gathered = Reading._gathered

    def counted(*arguments: Any) -> bool:
        came.append(gathered(*arguments))
        return came[-1]

    monkeypatch.setattr(Reading, "_gathered", counted)
    return came


@pytest.mark.parametrize("verify", ["bytes", "none"])
@pytest.mark.parametrize("hidden", [8, 6, 5, 1], ids=lambda hidden: f"rows of {2 * hidden} bytes")
def test_the_same_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: int, verify: str
) -> None:
    dataset = _set(tmp_path / "set", hidden)
    came = _count(monkeypatch)
    together = _batch(dataset, verify=verify)
    assert came == [True] * 6  # four layers, ids and masks
    monkeypatch.setattr(Reading, "_gathered", lambda *_: False)
    alone = _batch(dataset, verify=verify)
    assert together.sample_ids == alone.sample_ids
    assert torch.equal(
        together.hidden_states.view(torch.int16), alone.hidden_states.view(torch.int16)
    )
    assert torch.equal(together.input_ids, alone.input_ids)
    assert torch.equal(together.loss_mask, alone.loss_mask)


def test_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fill value has other bytes."""
    dataset = _set(tmp_path / "set", storage_dtype="bfloat16")
    came = _count(monkeypatch)
    batch = _batch(dataset)
    assert came == [True] * 6
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


def test_damage_where_no_row_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a sample in its last chunk is nobody's: its rows are whole, and told to be."""
    dataset = _damaged(tmp_path / "set", "unused")
    came = _count(monkeypatch)
    assert len(_batch(dataset).sample_ids) == len(LENGTHS)
    assert came == [True] * 6
    with pytest.raises(CorruptionError, match="s3"):
        dataset.get("s3")


def _damaged(folder: Path, where: str) -> Dataset:
    """A set with another bit in the last chunk of a sample of 17 tokens, which uses one row of it.

    It is in that row, behind it or in the CRC32C.
    """
    dataset = _set(folder)
    position = dataset.position("s3")
    chunks = dataset._axis.chunks_of(int(dataset._offsets[position]), 17)
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
    stated = Dataset.stated_tokens

    def differ(self: Dataset, positions: Any) -> Any:
        ids, mask = stated(self, positions)
        ids = ids.copy()
        ids[-1] += 1
        return ids, mask

    monkeypatch.setattr(Dataset, "stated_tokens", differ)
    came = _count(monkeypatch)
    batch = _batch(dataset)  # one by one they are the index's
    assert len(batch.sample_ids) == len(LENGTHS)
    assert came == [True] * 6


@pytest.mark.parametrize("lengths", [(1, 1), (9, 4096), (300_000, 7), (0, 5), (5, 0)])
def test_a_known_ending_is_taken_away(lengths: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    beginning, ending = (rng.integers(0, 256, size, np.uint8).tobytes() for size in lengths)
    whole, known = crc32c(beginning + ending), crc32c(ending)
    assert crc32c_of_beginning(whole, known, len(ending)) == crc32c(beginning)
