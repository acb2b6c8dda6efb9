"""Samples over the budget, cut: every row once, where it was; the trainer sees a piece right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from eagle3data import Batch, Dataset, StreamingLoader, open_dataset
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.trainer.shift import MaskAlignment, shift
from tests.support import random_samples, small_manifest, write_set

MANIFEST = small_manifest(shard_tokens=256)
SAMPLES = {sample.sample_id: sample for sample in random_samples(40, MANIFEST, longest=250)}
BUDGET = 72  # no multiple of the chunks' 16 tokens: pieces begin inside chunks


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    url = tmp_path_factory.mktemp("documents") / "set"
    return open_dataset(write_set(url, list(SAMPLES.values()), MANIFEST))


def _pieces(batch: Batch) -> list[tuple[str, slice, slice]]:
    """Each document's sample, its rows in the batch and in the sample."""
    bounds = batch.cu_seqlens.tolist()
    found = []
    for name, start, stop in zip(batch.sample_ids, bounds, bounds[1:], strict=False):
        first = int(batch.position_ids[start])
        found.append((name, slice(start, stop), slice(first, first + stop - start)))
    return found


@pytest.mark.parametrize("budget", [33, BUDGET])
def test_every_row_comes_once_as_it_was(dataset: Dataset, budget: int) -> None:
    seen = {name: np.zeros(len(sample), int) for name, sample in SAMPLES.items()}
    for batch in StreamingLoader(dataset, token_budget=budget, over_budget="split"):
        for name, here, there in _pieces(batch):
            sample = SAMPLES[name]
            seen[name][there] += 1
            assert batch.position_ids[here].tolist() == list(range(there.start, there.stop))
            assert np.array_equal(batch.input_ids[here].numpy(), sample.input_ids[there])
            assert np.array_equal(batch.loss_mask[here].numpy(), sample.loss_mask[there])
            for states, layer in zip(batch.hidden_states, batch.layers, strict=True):
                assert np.array_equal(states[here].numpy(), sample.hidden_states[layer][there])
    assert all((counts == 1).all() for counts in seen.values())


def test_pieces_are_full_but_the_last_and_stand_alone(dataset: Dataset) -> None:
    batches = list(StreamingLoader(dataset, token_budget=BUDGET, over_budget="split"))
    whole = [batch for batch in batches if len(SAMPLES[batch.sample_ids[0]]) > BUDGET]
    assert any(batch.tokens == BUDGET for batch in whole)
    for batch in batches:
        assert len(set(batch.sample_ids)) == len(batch.sample_ids)
        for name, here, there in _pieces(batch):
            assert there.start % BUDGET == 0
            assert here.stop - here.start == min(BUDGET, len(SAMPLES[name]) - there.start)


@pytest.mark.parametrize("alignment", MaskAlignment)
def test_the_trainer_sees_what_the_whole_sample_gave_it(
    dataset: Dataset, alignment: MaskAlignment
) -> None:
    """Pairs (t, s) whose token lies in the piece are those of the sample; the rest are dropped."""
    for batch in StreamingLoader(dataset, token_budget=BUDGET, over_budget="split"):
        for step in (0, 2):
            seen = shift(
                input_ids=batch.input_ids.numpy(),
                loss_mask=batch.loss_mask.numpy(),
                position_ids=batch.position_ids.numpy(),
                document_ids=batch.document_ids.numpy(),
                step=step,
                alignment=alignment,
            )
            for name, here, there in _pieces(batch):
                sample = SAMPLES[name]
                whole = shift(
                    input_ids=sample.input_ids,
                    loss_mask=sample.loss_mask,
                    position_ids=np.arange(len(sample)),
                    document_ids=np.zeros(len(sample), np.int32),
                    step=step,
                    alignment=alignment,
                )
                inside = slice(here.start, max(here.start, here.stop - 1 - step))
                alike = slice(there.start, there.start + inside.stop - inside.start)
                assert np.array_equal(seen.token_ids[inside], whole.token_ids[alike])
                assert np.array_equal(seen.keep[inside], whole.keep[alike])
                assert np.array_equal(seen.rotary_positions[inside], whole.rotary_positions[alike])
                moved = seen.teacher_positions[inside] - here.start + there.start
                assert np.array_equal(moved, whole.teacher_positions[alike])
                assert not seen.keep[inside.stop : here.stop].any()


def test_long_samples_are_refused_unless_asked(dataset: Dataset) -> None:
    wrong: Any = "drop"
    with pytest.raises(InputError, match="longer than the token budget 72 .* over_budget"):
        StreamingLoader(dataset, token_budget=BUDGET)
    with pytest.raises(InputError, match="over_budget is 'drop'"):
        StreamingLoader(dataset, token_budget=BUDGET, over_budget=wrong)
    with pytest.raises(InputError, match="token_budget is 0"):
        StreamingLoader(dataset, token_budget=0, over_budget="split")
    with pytest.raises(InputError, match="rows 5 to"):
        dataset.read_rows_here("hidden_states/2", 0, 5, np.empty((300, 32), np.float16))


@pytest.mark.parametrize("verify", ["bytes", "states"])
def test_pieces_are_checked(tmp_path: Path, verify: str) -> None:
    url = write_set(tmp_path / "set", list(SAMPLES.values()), MANIFEST)
    dataset = open_dataset(url)
    settings: dict[str, Any] = {"token_budget": BUDGET, "over_budget": "split", "verify": verify}
    list(StreamingLoader(dataset, **settings))
    position = max(range(len(dataset)), key=dataset.length)
    offset = int(dataset.index["token_offset"][position].as_py())
    if verify == "states":
        array = zarr.open_array(f"{url}/hidden_states/2", mode="r+")
        array[offset + BUDGET : offset + BUDGET + 1] = np.full((1, 32), np.nan, np.float16)
    else:
        reader = dataset.shard_reader("hidden_states/2", dataset.shard_of(position))
        chunk = MANIFEST.storage.axis.chunks_of(offset, 250)[BUDGET // 16]
        path = tmp_path / "set" / "hidden_states/2/c" / str(dataset.shard_of(position)) / "0"
        data = bytearray(path.read_bytes())
        data[int(reader.index[chunk][0]) + 3] ^= 1
        path.write_bytes(data)
    with pytest.raises(CorruptionError, match=dataset.sample_id(position)):
        list(StreamingLoader(open_dataset(url), **settings))
