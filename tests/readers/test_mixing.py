"""Several data sets in one stream: shares of tokens, nobody twice before everybody once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3data import Dataset, Manifest, StreamingLoader, open_dataset
from eagle3data.readers.mixing import dealt, draws
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.errors import InputError, MismatchError
from tests.support import random_sample, random_samples, small_manifest, write_set

BUDGET = 200
MANIFEST = small_manifest(shard_tokens=512)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    folder = tmp_path_factory.mktemp("mixing")
    # The other set has other shards and chunks: only what a batch shows must be alike.
    other = small_manifest(shard_tokens=1024, chunk_tokens=32)
    long = [random_sample(f"long{n}", 100 + n, n, other, split="train") for n in range(20)]
    return [
        open_dataset(write_set(folder / "a", random_samples(90, MANIFEST), MANIFEST)),
        open_dataset(write_set(folder / "b", long, other)),
    ]


def test_without_weights_each_sample_of_each_set_comes_once(sets: list[Dataset]) -> None:
    names = [n for b in StreamingLoader(sets, token_budget=BUDGET) for n in b.sample_ids]
    assert sorted(names) == sorted(
        dataset.sample_id(row) for dataset in sets for row in range(len(dataset))
    )


def test_weights_are_shares_of_tokens(sets: list[Dataset]) -> None:
    tokens = [dataset.tokens for dataset in sets]
    loader = StreamingLoader(sets, token_budget=BUDGET, weights=[1, 4])
    seen: Counter[str] = Counter()
    share = []
    for epoch in range(12):
        loader.set_epoch(epoch)
        lengths = [0, 0]
        for pack in loader.packs:
            for document in pack:
                number = sets.index(loader.documents.dataset(document))
                lengths[number] += loader.documents.length(document)
                seen[loader.documents.sample_id(document)] += 1
        assert abs(sum(lengths) / sum(tokens) - 1) < 0.05
        share.append(lengths[1] / sum(lengths))
    assert abs(np.mean(share) - 0.8) < 0.005
    for dataset in sets:
        counts = [seen[dataset.sample_id(row)] for row in range(len(dataset))]
        assert max(counts) - min(counts) <= 1


def test_a_mixed_stream_is_read_and_resumed(sets: list[Dataset]) -> None:
    settings: dict[str, Any] = {"token_budget": BUDGET, "weights": [2, 1], "seed": 5}
    whole = list(StreamingLoader(sets, **settings))
    for batch in whole:
        for document, name in enumerate(batch.sample_ids):
            dataset = sets[name.startswith("long")]
            sample = dataset.get(name)
            rows = (batch.document_ids == document).numpy()
            assert np.array_equal(batch.input_ids[rows].numpy(), sample.input_ids)
            assert np.array_equal(batch.hidden_states[1][rows].numpy(), sample.hidden_states[6])
    loader = StreamingLoader(sets, **settings)
    stream = iter(loader)
    for _ in range(7):
        next(stream)
    again = StreamingLoader(sets, **settings)
    again.load_state_dict(loader.state_dict())
    assert [b.sample_ids for b in again] == [b.sample_ids for b in whole[7:]]
    with pytest.raises(MismatchError, match="generation"):
        StreamingLoader(sets[:1], token_budget=BUDGET, weights=[2], seed=5).load_state_dict(
            loader.state_dict()
        )


@given(st.integers(1, 50), st.integers(1, 120), st.integers(0, 2**64), st.integers(1, 6))
def test_dealt_round_by_round(documents: int, drawn: int, seed: int, epochs: int) -> None:
    cards = np.concatenate(
        [dealt(documents, drawn, number=3, seed=seed, epoch=epoch)[0] for epoch in range(epochs)]
    )
    for start in range(0, len(cards) - documents + 1, documents):
        assert sorted(cards[start : start + documents].tolist()) == list(range(documents))


def test_draws_by_hand() -> None:
    # 300 tokens in all; a third is 100 = 10 of 10 tokens, two thirds are 200 = 1 of 200 tokens.
    assert draws([1, 2], [10, 1], [100, 200]) == [10, 1]
    assert draws([2, 1], [10, 1], [100, 200]) == [20, 1]
    assert draws([0.5, 0.5], [10, 1], [100, 200]) == [15, 1]


def test_sets_that_differ_are_refused(sets: list[Dataset], tmp_path: Path) -> None:
    def one(name: str, manifest: Manifest) -> Dataset:
        samples = [random_sample("x", 9, 1, manifest)]
        return open_dataset(write_set(tmp_path / name, samples, manifest))

    axis = TokenAxis(shard_tokens=64, chunk_tokens=16)
    wide = Manifest.synthetic(hidden_size=64, num_hidden_layers=12, vocab_size=500, axis=axis)
    other_layers = small_manifest(layers=[3, 12])
    bfloat = small_manifest(storage_dtype="bfloat16")
    with pytest.raises(InputError, match="hidden size is 64, not 32"):
        StreamingLoader([sets[0], one("wide", wide)], token_budget=BUDGET)
    with pytest.raises(InputError, match=r"layers \[3, 12\], not \[2, .*Give layers="):
        StreamingLoader([sets[0], one("layers", other_layers)], token_budget=BUDGET)
    with pytest.raises(InputError, match="storage dtype is bfloat16, not float16"):
        StreamingLoader([sets[0], one("dtype", bfloat)], token_budget=BUDGET)
    common = StreamingLoader(
        [sets[0], open_dataset(str(tmp_path / "layers"))], token_budget=BUDGET, layers=[12]
    )
    assert next(iter(common)).hidden_states.shape[0] == 1
    for weights in ([1], [1, 0], [1, float("nan")]):
        with pytest.raises(InputError, match="one number above 0"):
            StreamingLoader(sets, token_budget=BUDGET, weights=weights)
    with pytest.raises(InputError, match="no data set"):
        StreamingLoader([], token_budget=BUDGET)
