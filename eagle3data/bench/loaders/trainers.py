"""The trainers' own loaders: speculators and SpecForge, as their training commands set them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from eagle3data.bench.corpus import HIDDEN, LAYERS, Corpus
from eagle3data.bench.loaders.base import BUDGET, Document, Epoch, LoaderPeer


class Speculators(LoaderPeer):
    """A safetensors file a sample, `ArrowDataset`, its packing sampler, collate and DataLoader.

    States are stored as bfloat16, which is what it trains in, so that it needn't cast.
    """

    name = layout = "speculators"
    title = "speculators"
    checks = False
    packs = True
    packages = (("speculators", "speculators"), ("datasets", "datasets"))
    counts = (1, 2, None)

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        import torch
        from datasets import Dataset
        from safetensors.torch import save_file

        rows = []
        for position in range(len(corpus)):
            sample = corpus.sample(position)
            rows.append(
                {
                    "input_ids": sample.input_ids.tolist(),
                    "loss_mask": sample.loss_mask.astype(bool).tolist(),
                    "seq_len": len(sample.input_ids),
                }
            )
        Dataset.from_list(rows).with_format("torch").save_to_disk(str(folder))
        (folder / "hidden_states").mkdir()
        for position, row in enumerate(rows):
            states = torch.from_numpy(corpus.states(position)).to(torch.bfloat16)
            save_file(
                {
                    "hidden_states": states.transpose(0, 1).contiguous(),  # [T, 4, 7168]
                    "token_ids": torch.tensor(row["input_ids"]),
                },
                folder / "hidden_states" / f"hs_{position}.safetensors",
            )

    @contextmanager
    def opened(self, _corpus: Corpus, folder: Path, workers: int | None, /) -> Iterator[Epoch]:
        from speculators.train.data import ArrowDataset
        from speculators.train.dataloader import _setup_dataloader

        samples = ArrowDataset(BUDGET, folder, on_missing="raise")
        chosen = {} if workers is None else {"num_workers": workers}
        loader = _setup_dataloader(samples, BUDGET, HIDDEN, **chosen)
        yield lambda: loader
        # Workers that wait for the next epoch end with the loader's iterator.
        loader._iterator = None

    def documents(self, batch: Any, /) -> list[Document]:
        fused = batch["hidden_states"][0].float().numpy()  # [budget, 3 * 7168]
        last = batch["verifier_last_hidden_states"][0].float().numpy()
        ids = batch["input_ids"][0].numpy()
        bounds = np.cumsum([0, *_lengths(batch)]).tolist()
        found: list[Document] = []
        for first, stop in pairwise(bounds):
            layers = [*np.split(fused[first:stop], len(LAYERS) - 1, axis=1), last[first:stop]]
            found.append((ids[first:stop], layers))
        return found

    def tokens(self, batch: Any, /) -> int:
        return sum(_lengths(batch))


def _lengths(batch: Any) -> list[int]:
    """Of the samples in a batch of speculators'; rows of document -1 are padding."""
    documents = batch["document_ids"][0]
    return documents[documents >= 0].bincount().tolist()  # type: ignore[no-any-return]


class SpecForge(LoaderPeer):
    """A torch.save file a sample, read and cloned by `FeatureDataLoader`; a batch is a sample."""

    name = layout = "specforge"
    title = "SpecForge"
    checks = False
    packs = False
    packages = (("specforge", "specforge"),)

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        import torch

        for position in range(len(corpus)):
            sample = corpus.sample(position)
            states = torch.from_numpy(corpus.states(position))
            fused = torch.cat(list(states[:-1]), dim=-1)  # [T, 3 * 7168]
            torch.save(
                {
                    "input_ids": torch.from_numpy(sample.input_ids.astype(np.int64)),
                    "loss_mask": torch.from_numpy(sample.loss_mask.astype(np.int64)),
                    "aux_hidden_state": fused[None],
                    "hidden_state": states[-1:].clone(),
                },
                folder / f"data_{position:06d}.ckpt",
            )

    @contextmanager
    def opened(self, _corpus: Corpus, folder: Path, workers: int | None, /) -> Iterator[Epoch]:
        from specforge.algorithms.eagle3.data import (
            build_offline_collator,
            build_offline_normalizer,
            build_offline_reader,
        )
        from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader
        from specforge.runtime.data_plane.feature_store import LocalFeatureStore

        reader = build_offline_reader(str(folder), run_id="bench", ttt_length=7, max_len=BUDGET)
        refs = reader.read()
        loader = FeatureDataLoader(
            LocalFeatureStore("bench"),
            refs=refs,
            collate_fn=build_offline_collator(),
            per_sample_transform=build_offline_normalizer(BUDGET),
            drop_last=False,
            num_workers=workers or 0,
        )

        yield lambda: cast("Iterable[Any]", loader)

    def documents(self, batch: Any, /) -> list[Document]:
        tensors = batch.tensors
        fused = tensors["hidden_state"][0].float().numpy()
        layers = [*np.split(fused, len(LAYERS) - 1, axis=1), tensors["target"][0].float().numpy()]
        return [(tensors["input_ids"][0].numpy(), layers)]

    def tokens(self, batch: Any, /) -> int:
        return int(batch.tensors["input_ids"].shape[1])
