"""The stream: every sample once, the same for the same seed, resumable at any world size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3data import Batch, Dataset, DatasetWriter, StreamingLoader, open_dataset
from eagle3data.readers.order import epoch_order
from eagle3data.schema.errors import CorruptionError, InputError, MismatchError
from eagle3data.schema.manifest import Manifest
from tests.readers.from_the_page import Page, Selected
from tests.support import random_sample, random_samples, small_manifest, write_set

MANIFEST = small_manifest(shard_tokens=256)
SAMPLES = {sample.sample_id: sample for sample in random_samples(60, MANIFEST, longest=90)}
BUDGET = 200


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    url = tmp_path_factory.mktemp("loader") / "set"
    return open_dataset(write_set(url, list(SAMPLES.values()), MANIFEST))


def _ids(batches: list[Batch]) -> list[list[str]]:
    return [batch.sample_ids for batch in batches]


def test_batches_hold_their_samples(dataset: Dataset) -> None:
    for batch in StreamingLoader(dataset, token_budget=BUDGET):
        assert batch.hidden_states.shape == (4, BUDGET, 32)
        assert batch.hidden_states.dtype == torch.float16
        bounds = batch.cu_seqlens.tolist()
        for document, name in enumerate(batch.sample_ids):
            sample, at = SAMPLES[name], slice(bounds[document], bounds[document + 1])
            for slot, layer in enumerate(batch.layers):
                expected = sample.hidden_states[layer]
                np.testing.assert_array_equal(batch.hidden_states[slot, at].numpy(), expected)
            np.testing.assert_array_equal(batch.input_ids[at].numpy(), sample.input_ids)
            np.testing.assert_array_equal(batch.loss_mask[at].numpy(), sample.loss_mask)
            assert batch.position_ids[at].tolist() == list(range(len(sample)))
            assert set(batch.document_ids[at].tolist()) == {document}
        rest = slice(bounds[-1], None)
        assert not batch.hidden_states[:, rest].any()
        assert not batch.loss_mask[rest].any()
        assert set(batch.document_ids[rest].tolist()) <= {-1}


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_every_sample_once_and_ranks_in_step(dataset: Dataset, world_size: int) -> None:
    ranks = [
        list(StreamingLoader(dataset, token_budget=BUDGET, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    names = [name for batches in ranks for batch in batches for name in batch.sample_ids]
    assert sorted(names) == sorted(SAMPLES)
    padding = [batch.is_padding for batches in ranks for batch in batches[:-1]]
    assert not any(padding)


def test_order_depends_on_seed_and_epoch_only(dataset: Dataset) -> None:
    def epoch(seed: int, number: int) -> list[list[str]]:
        loader = StreamingLoader(dataset, token_budget=BUDGET, seed=seed)
        loader.set_epoch(number)
        return _ids(list(loader))

    assert epoch(0, 0) == epoch(0, 0)
    assert epoch(0, 0) != epoch(0, 1)
    assert epoch(0, 0) != epoch(1, 0)
    loader = StreamingLoader(dataset, token_budget=BUDGET)
    assert [_ids(list(loader)), _ids(list(loader))] == [epoch(0, 0), epoch(0, 1)]


def _reference_order(samples: int, seed: int, epoch: int) -> list[int]:
    """The order as the documentation defines it, in plain integers."""

    def mix(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) % 2**64
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
        return value ^ (value >> 31)

    start = mix((mix(seed) + epoch) % 2**64)
    return sorted(range(samples), key=lambda position: mix((start + position) % 2**64))


@given(st.integers(1, 300), st.integers(0, 2**63), st.integers(0, 1000))
def test_the_order_is_the_documented_one(samples: int, seed: int, epoch: int) -> None:
    assert epoch_order(samples, seed, epoch).tolist() == _reference_order(samples, seed, epoch)


def test_the_order_is_pinned() -> None:
    """A change here changes every stream: raise PACKING_VERSION with it."""
    assert epoch_order(8, 0, 0).tolist() == [4, 0, 1, 7, 6, 2, 5, 3]


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_resume_gives_the_rest_at_any_world_size(dataset: Dataset, data: st.DataObject) -> None:
    before, after = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    seed, epoch = data.draw(st.integers(0, 2**40)), data.draw(st.integers(0, 3))
    shards = dataset.manifest.storage.axis.shard_tokens
    columns = [dataset.index[name].to_pylist() for name in ("length", "token_offset")]
    rows = [
        Selected(row, n, at // shards) for row, (n, at) in enumerate(zip(*columns, strict=True))
    ]
    page = Page([rows], BUDGET, seed=seed)

    def ranks(world_size: int) -> list[StreamingLoader]:
        return [
            StreamingLoader(
                dataset, token_budget=BUDGET, seed=seed, rank=rank, world_size=world_size
            )
            for rank in range(world_size)
        ]

    def expected(rank: int, world_size: int, start: int = 0) -> list[list[str]]:
        steps = page.rank(epoch, rank, world_size, start)
        return [[dataset.sample_id(document.row) for document in step] for step in steps]

    running = ranks(before)
    for loader in running:
        loader.set_epoch(epoch)
    steps = data.draw(st.integers(0, len(running[0])))
    streams = [iter(loader) for loader in running]
    consumed = [[next(stream).sample_ids for _ in range(steps)] for stream in streams]
    assert consumed == [expected(rank, before)[:steps] for rank in range(before)]
    states = [loader.state_dict() for loader in running]
    assert all(state == states[0] for state in states)
    resumed = ranks(after)
    for loader in resumed:
        loader.load_state_dict(states[0])
    rest = [_ids(list(loader)) for loader in resumed]
    start = states[0]["consumed"]
    assert rest == [expected(rank, after, start) for rank in range(after)]
    names = [name for stream in consumed + rest for batch in stream for name in batch]
    assert sorted(names) == sorted(SAMPLES)


def test_a_state_of_another_stream_is_refused(dataset: Dataset) -> None:
    state = StreamingLoader(dataset, token_budget=BUDGET).state_dict()
    with pytest.raises(MismatchError, match="seed was 0, here it is 1"):
        StreamingLoader(dataset, token_budget=BUDGET, seed=1).load_state_dict(state)
    with pytest.raises(MismatchError, match="token_budget"):
        StreamingLoader(dataset, token_budget=BUDGET + 1).load_state_dict(state)
    with pytest.raises(MismatchError, match="selection"):
        StreamingLoader(dataset, token_budget=BUDGET, split="eval").load_state_dict(state)
    with pytest.raises(MismatchError, match="over_budget was refuse, here it is split"):
        StreamingLoader(dataset, token_budget=BUDGET, over_budget="split").load_state_dict(state)
    with pytest.raises(MismatchError, match="shuffle was global, here it is shard"):
        StreamingLoader(dataset, token_budget=BUDGET, shuffle="shard").load_state_dict(state)
    with pytest.raises(MismatchError, match="weights was none, here it is 2.0"):
        StreamingLoader([dataset], token_budget=BUDGET, weights=[2]).load_state_dict(state)
    without = {key: value for key, value in state.items() if key != "consumed"}
    with pytest.raises(MismatchError, match="lacks consumed"):
        StreamingLoader(dataset, token_budget=BUDGET).load_state_dict(without)
    with pytest.raises(MismatchError, match="counts 10000 packs"):
        StreamingLoader(dataset, token_budget=BUDGET).load_state_dict({**state, "consumed": 10000})
    with pytest.raises(MismatchError, match="version"):
        StreamingLoader(dataset, token_budget=BUDGET).load_state_dict({**state, "version": 0})


def test_selection(dataset: Dataset) -> None:
    names = [
        name
        for batch in StreamingLoader(dataset, token_budget=BUDGET, split="eval", layers=[2, 12])
        for name in batch.sample_ids
    ]
    assert sorted(names) == sorted(n for n, sample in SAMPLES.items() if sample.split == "eval")
    long = StreamingLoader(
        dataset, token_budget=BUDGET, where=lambda index: index["length"].to_numpy() > 50
    )
    kept = {name for batch in long for name in batch.sample_ids}
    assert kept == {name for name, sample in SAMPLES.items() if len(sample) > 50}
    longer = StreamingLoader(dataset, token_budget=BUDGET, min_length=51)
    assert {name for batch in longer for name in batch.sample_ids} == kept
    with pytest.raises(InputError, match="gave shape"):
        StreamingLoader(dataset, token_budget=BUDGET, where=lambda index: np.ones(3, bool))
    with pytest.raises(InputError, match="min_length=91"):
        StreamingLoader(dataset, token_budget=BUDGET, min_length=91)
    with pytest.raises(InputError, match="no sample of .* is selected"):
        StreamingLoader(dataset, token_budget=BUDGET, split="test")


def test_refusals(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="longer than the token budget 20"):
        StreamingLoader(dataset, token_budget=20)
    with pytest.raises(InputError, match="both rank and world_size"):
        StreamingLoader(dataset, token_budget=BUDGET, rank=0)
    with pytest.raises(InputError, match="rank 3 of world size 2"):
        StreamingLoader(dataset, token_budget=BUDGET, rank=3, world_size=2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(InputError, match="init_process_group"):
        StreamingLoader(dataset, token_budget=BUDGET)


def test_a_damaged_sample_stops_or_is_left_out_with_a_row(tmp_path: Path) -> None:
    manifest = small_manifest()
    samples = random_samples(12, manifest)
    url = write_set(tmp_path / "set", samples, manifest)
    dataset = open_dataset(url)
    victim = str(dataset.index["sample_id"][4].as_py())
    reader = dataset.shard_reader("hidden_states/2", dataset.shard_of(4))
    first = dataset.manifest.storage.axis.chunks_of(
        int(dataset.index["token_offset"][4].as_py()), len(dataset[4])
    )[0]
    path = tmp_path / "set" / "hidden_states/2/c" / str(dataset.shard_of(4)) / "0"
    data = bytearray(path.read_bytes())
    data[int(reader.index[first][0]) + 5] ^= 1
    path.write_bytes(data)
    settings: dict[str, Any] = {"token_budget": 100, "rank": 0, "world_size": 1}
    with pytest.raises(CorruptionError, match=victim):
        list(StreamingLoader(open_dataset(url), **settings))
    run = tmp_path / "run" / "skipped.jsonl"
    loader = StreamingLoader(open_dataset(url), on_error="skip", ledger=run, **settings)
    batches = list(loader)
    names = [name for batch in batches for name in batch.sample_ids]
    assert sorted(names) == sorted({sample.sample_id for sample in samples} - {victim})
    by_id = {sample.sample_id: sample for sample in samples}
    for batch in batches:
        for document, name in enumerate(batch.sample_ids):
            rows = batch.document_ids == document
            assert np.array_equal(batch.input_ids[rows].numpy(), by_id[name].input_ids)
            assert np.array_equal(
                batch.hidden_states[0][rows].numpy(), by_id[name].hidden_states[2]
            )
        assert not batch.hidden_states[:, batch.document_ids < 0].any()
        assert not batch.loss_mask[batch.document_ids < 0].any()
    assert loader.skipped == 1
    (row,) = map(json.loads, run.read_text().splitlines())
    assert (row["sample_id"], row["kind"], row["data_set"]) == (victim, "chunk_corrupt", url)
    strict = StreamingLoader(open_dataset(url), on_error="skip", max_skipped=0, **settings)
    with pytest.raises(CorruptionError, match=victim):
        list(strict)


def test_settings_that_mean_nothing_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    wrong: Any = "ignore"
    with pytest.raises(InputError, match="on_error"):
        StreamingLoader(dataset, token_budget=BUDGET, on_error=wrong)
    with pytest.raises(InputError, match="verify is 'checksums'; expected one of states, bytes"):
        StreamingLoader(dataset, token_budget=BUDGET, verify=cast("Any", "checksums"))
    with pytest.raises(InputError, match="threads"):
        open_dataset(dataset.url, threads=0)
    with pytest.raises(InputError, match="threads"):
        StreamingLoader(dataset, token_budget=BUDGET, threads=0)
    with pytest.raises(InputError, match="prefetch_bytes"):
        StreamingLoader(dataset, token_budget=BUDGET, prefetch_bytes=-1)
    with pytest.raises(InputError, match="max_skipped"):
        StreamingLoader(dataset, token_budget=BUDGET, max_skipped=-1)
    with pytest.raises(InputError, match=r"not \[3\]"):
        StreamingLoader(dataset, token_budget=BUDGET, layers=[3])
    with pytest.raises(InputError, match="ledger"):
        StreamingLoader(dataset, token_budget=BUDGET, ledger=tmp_path)
    with pytest.raises(InputError, match="queue_bytes"):
        DatasetWriter.create(str(tmp_path / "set"), MANIFEST, queue_bytes=-1)


def _written_again(folder: Path, change: Callable[[Any], Any]) -> Dataset:
    """A set whose sample `s4` was changed at layer 2 by stock zarr, checksums and all."""
    url = write_set(folder, random_samples(12, MANIFEST), MANIFEST)
    dataset = open_dataset(url)
    position = dataset.position("s4")
    offset, length = (int(dataset.index[k][position].as_py()) for k in ("token_offset", "length"))
    array = zarr.open_array(f"{url}/hidden_states/2", mode="r+")
    array[offset : offset + length] = change(array[offset : offset + length])
    return open_dataset(url)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda rows: rows * np.float16(1.5), "object_changed"),
        (np.zeros_like, "all_zero"),
        (lambda rows: np.where(rows == rows.max(), np.float16(np.nan), rows), "nonfinite"),
        (lambda rows: np.full_like(rows, np.inf), "saturated"),
    ],
)
def test_states_written_again_are_met_by_verify_states_only(
    tmp_path: Path, change: Callable[[Any], Any], kind: str
) -> None:
    dataset = _written_again(tmp_path / "set", change)
    for unseen in (True, "bytes", "none", False):
        list(StreamingLoader(dataset, token_budget=100, rank=0, world_size=1, verify=unseen))
    with pytest.raises(CorruptionError, match="s4") as told:
        list(StreamingLoader(dataset, token_budget=100, rank=0, world_size=1, verify="states"))
    assert (told.value.kind, told.value.array) == (kind, "hidden_states/2")


def test_whole_states_pass_every_check(dataset: Dataset) -> None:
    whole = [batch.sample_ids for batch in StreamingLoader(dataset, token_budget=BUDGET)]
    checked = StreamingLoader(dataset, token_budget=BUDGET, verify="states")
    assert [batch.sample_ids for batch in checked] == whole


def test_another_target_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = {"num_hidden_layers": 12, "hidden_size": 32, "vocab_size": 64, "model_type": "llama"}
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer.json").write_text("{}")
    manifest = Manifest.for_model(str(model), axis=MANIFEST.storage.axis, engine="t")
    samples = [random_sample(f"s{n}", 20, n, manifest) for n in range(3)]
    dataset = open_dataset(write_set(tmp_path / "set", samples, manifest))
    same: dict[str, Any] = {"token_budget": BUDGET, "target": str(model)}
    assert len(list(StreamingLoader(dataset, **same))) >= 1
    (model / "tokenizer.json").write_text("{ }")
    with pytest.raises(MismatchError, match="its tokenizer is another"):
        StreamingLoader(dataset, **same)
    (model / "config.json").write_text(json.dumps({**config, "rope_theta": 1}))
    with pytest.raises(MismatchError, match=r"config\.json is another; its tokenizer"):
        StreamingLoader(dataset, **same)
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    with pytest.raises(MismatchError, match="hidden_size was 32, is 64"):
        StreamingLoader(dataset, **same)
