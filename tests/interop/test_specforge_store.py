"""SpecForge's own loader over a data set: batch by batch what it makes of an export's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3data.interop import write_specforge
from eagle3data.readers.dataset import open_dataset
from eagle3data.schema.errors import InputError, MismatchError
from tests.support import random_samples, small_manifest, write_set

pytest.importorskip("specforge", reason="specforge is not installed (docs/speculators.md)")


def _halved(states: Any) -> Any:
    return states / 2


def _loader(store: Any, refs: list[Any]) -> Any:
    from specforge.algorithms.eagle3.data import build_offline_collator, build_offline_normalizer
    from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader

    return FeatureDataLoader(
        store,
        refs=refs,
        batch_size=3,
        drop_last=False,
        collate_fn=build_offline_collator(),
        per_sample_transform=build_offline_normalizer(64),
    )


def test_batches_are_those_of_its_files(tmp_path: Path) -> None:
    from specforge.algorithms.eagle3.data import build_offline_reader
    from specforge.runtime.data_plane.feature_store import LocalFeatureStore

    from eagle3data.interop.specforge_store import DataSetStore

    manifest = small_manifest()
    dataset = open_dataset(write_set(tmp_path / "set", random_samples(9, manifest), manifest))
    write_specforge.write(dataset, tmp_path / "files", final_norm=_halved)
    reader = build_offline_reader(str(tmp_path / "files"), run_id="r", ttt_length=7, max_len=64)
    theirs = list(_loader(LocalFeatureStore("r"), reader.read()))
    store = DataSetStore(dataset, _halved)
    ours = list(_loader(store, store.refs("r", split=None, max_len=64)))
    assert len(ours) == len(theirs) == 3
    for mine, original in zip(ours, theirs, strict=True):
        assert mine.metadata == original.metadata
        assert mine.tensors.keys() == original.tensors.keys()
        for name, tensor in original.tensors.items():
            assert torch.equal(mine.tensors[name], tensor), name
    refs = store.refs("r")
    assert len(refs) == 6  # 0, 4 and 8 are held out
    with pytest.raises(InputError, match="no sample of the split 'test'"):
        store.refs("r", split="test")
    with pytest.raises(InputError, match="give the target's norm"):
        DataSetStore(dataset)
    other = open_dataset(write_set(tmp_path / "other", random_samples(10, manifest), manifest))
    with pytest.raises(MismatchError, match="Make the refs anew"):
        DataSetStore(other, _halved).get(refs[0])
