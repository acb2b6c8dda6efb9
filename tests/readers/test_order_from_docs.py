"""`docs/loader.md` says enough to write the order and the packing again, in plain Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eagle3data import Dataset, StreamingLoader, open_dataset
from tests.support import random_samples, small_manifest, write_set

_ALL = 2**64 - 1


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _ALL
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _ALL
    return value ^ (value >> 31)


def _packs(
    rows: list[int], lengths: list[int], budget: int, seed: int, epoch: int
) -> list[list[int]]:
    base = _mix((_mix(seed) + epoch) & _ALL)
    keys = {row: _mix((base + i) & _ALL) for i, row in enumerate(rows)}
    order = sorted(rows, key=keys.__getitem__)
    place = {row: at for at, row in enumerate(order)}
    done: list[list[int]] = []
    window: list[int] = []
    held = 0
    for row in order:
        window.append(row)
        held += lengths[row]
        if held < 32 * budget:
            continue
        made = _fit(window, lengths, budget)
        tokens = [sum(lengths[one] for one in pack) for pack in made]
        middle = sorted(tokens)[len(tokens) // 2]
        done += [pack for pack, count in zip(made, tokens, strict=True) if count >= middle]
        window = [
            one for pack, count in zip(made, tokens, strict=True) if count < middle for one in pack
        ]
        held = sum(lengths[one] for one in window)
    done += _fit(window, lengths, budget)
    return [sorted(pack, key=place.__getitem__) for pack in done]


def _fit(window: list[int], lengths: list[int], budget: int) -> list[list[int]]:
    packs: list[list[int]] = []
    for row in sorted(window, key=lambda one: (-lengths[one], one)):
        for pack in packs:
            if sum(lengths[one] for one in pack) + lengths[row] <= budget:
                pack.append(row)
                break
        else:
            packs.append([row])
    return packs


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (7, 3), (2**63 + 5, 1)])
def test_the_page_is_the_order(tmp_path: Path, seed: int, epoch: int) -> None:
    manifest = small_manifest(shard_tokens=256)
    samples = random_samples(300, manifest, longest=60)
    dataset = open_dataset(write_set(tmp_path / "set", samples, manifest))
    lengths = [dataset.length(row) for row in range(len(dataset))]
    rows = [row for row, split in enumerate(dataset.index["split"].to_pylist()) if split == "train"]
    budget = 64
    loader = StreamingLoader(dataset, token_budget=budget, seed=seed, split="train")
    loader.set_epoch(epoch)
    expected = _packs(rows, lengths, budget, seed, epoch)
    assert loader.packs == expected
    assert len(expected) > 64, "several windows"
    names = np.array(dataset.index["sample_id"].to_pylist())
    streams = [
        [batch.sample_ids for batch in _rank(dataset, seed, epoch, rank)] for rank in range(3)
    ]
    for place, pack in enumerate(expected):
        assert streams[place % 3][place // 3] == names[pack].tolist()


def _rank(dataset: Dataset, seed: int, epoch: int, rank: int) -> StreamingLoader:
    loader = StreamingLoader(
        dataset,
        token_budget=64,
        seed=seed,
        split="train",
        rank=rank,
        world_size=3,
        layers=[2],
    )
    loader.set_epoch(epoch)
    return loader
