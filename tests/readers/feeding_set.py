"""A small set for the tests of feeding, and what its batches must be."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eagle3data import Batch, Dataset, open_dataset
from tests.support import random_samples, small_manifest, write_set

MANIFEST = small_manifest(shard_tokens=256)
SAMPLES = {sample.sample_id: sample for sample in random_samples(80, MANIFEST, longest=90)}
BUDGET = 200


def write(folder: Path) -> Dataset:
    return open_dataset(write_set(folder / "set", list(SAMPLES.values()), MANIFEST))


def require_right(batch: Batch) -> None:
    batch = batch.to("cpu")
    for document, name in enumerate(batch.sample_ids):
        sample = SAMPLES[name]
        rows = batch.document_ids == document
        assert np.array_equal(batch.input_ids[rows].numpy(), sample.input_ids)
        assert np.array_equal(batch.loss_mask[rows].numpy(), sample.loss_mask)
        for at, layer in enumerate(batch.layers):
            assert np.array_equal(
                batch.hidden_states[at][rows].numpy(), sample.hidden_states[layer]
            )
    assert batch.tokens == int(batch.cu_seqlens[-1]) == int((batch.document_ids >= 0).sum())
    assert not batch.hidden_states[:, batch.tokens :].any()
