"""`docs/loader.md` says enough to write the order and the packing again, in plain Python."""

from __future__ import annotations

from typing import Any

import pytest

from eagle3data import Dataset, StreamingLoader, open_dataset
from tests.readers.from_the_page import Page, Selected
from tests.support import random_samples, small_manifest, write_set

BUDGET = 64
WAYS: dict[str, dict[str, Any]] = {
    "global": {},
    "shard": {"shuffle": "shard"},
    "none": {"shuffle": "none"},
    "split": {"over_budget": "split"},
    "mixed": {"sets": 2, "over_budget": "split"},
    "weighted": {"sets": 2, "weights": [1, 2.5], "over_budget": "split"},
    "weighted shards": {"sets": 2, "weights": [3, 1], "shuffle": "shard", "over_budget": "split"},
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    folder = tmp_path_factory.mktemp("page")
    manifest = small_manifest(shard_tokens=256)
    first = random_samples(300, manifest, longest=64)
    second = random_samples(120, manifest, longest=200)
    return [
        open_dataset(write_set(folder / "first", first, manifest)),
        open_dataset(write_set(folder / "second", second, manifest)),
    ]


def selected(dataset: Dataset, split: str = "train") -> list[Selected]:
    shards = dataset.manifest.storage.axis.shard_tokens
    columns = [dataset.index[name].to_pylist() for name in ("split", "length", "token_offset")]
    return [
        Selected(row, length, offset // shards)
        for row, (of, length, offset) in enumerate(zip(*columns, strict=True))
        if of == split
    ]


@pytest.mark.parametrize(
    ("way", "seed", "epoch"),
    [("global", 0, 0), ("global", 2**63 + 5, 1), *((way, 7, 3) for way in WAYS)],
)
def test_the_page_is_the_order(sets: list[Dataset], way: str, seed: int, epoch: int) -> None:
    settings = dict(WAYS[way])
    given = sets[: settings.pop("sets", 1)]
    if way == "split":
        given = sets[1:]
    page = Page(
        [selected(dataset) for dataset in given],
        BUDGET,
        seed=seed,
        shuffle=settings.get("shuffle", "global"),
        weights=settings.get("weights"),
    )
    expected = page.packs(epoch)
    loaders = []
    for rank in range(3):
        loader = StreamingLoader(
            given,
            token_budget=BUDGET,
            seed=seed,
            split="train",
            rank=rank,
            world_size=3,
            layers=[2],
            **settings,
        )
        loader.set_epoch(epoch)
        loaders.append(loader)
    assert loaders[0].packs == [[document.number for document in pack] for pack in expected]
    assert len(expected) > 64, "several windows"
    for rank, loader in enumerate(loaders):
        steps = page.rank(epoch, rank, 3)
        for batch, documents in zip(loader, steps, strict=True):
            names = [given[one.data_set].sample_id(one.row) for one in documents]
            assert batch.sample_ids == names
            starts = batch.position_ids[batch.cu_seqlens[:-1].long()].tolist()
            assert starts == [one.first for one in documents]
            lengths = batch.cu_seqlens.diff().tolist()
            assert lengths == [one.length for one in documents]
