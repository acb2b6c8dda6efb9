"""The trainers' ways: a file a sample (safetensors, torch.save), or samples in one mapped file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import numpy as np

from eagle3data.bench.corpus import HIDDEN, LAYERS, Corpus, States
from eagle3data.bench.peers.base import Peer, ReadSample


class Safetensors(Peer):
    """A safetensors file a sample, loaded by torch's loader and copied: speculators' way."""

    name = layout = "safetensors"
    reading = "safetensors a sample, load + copy"
    writing = "safetensors a sample"
    checks = False
    packages = (("safetensors", "safetensors"), ("torch", "torch"))

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        import torch
        from safetensors.torch import save_file

        for position in range(len(corpus)):
            states = torch.from_numpy(corpus.states(position))
            save_file(
                {str(layer): states[slot] for slot, layer in enumerate(LAYERS)},
                folder / f"{position:06d}.safetensors",
            )

    @contextmanager
    def reader(self, _corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        from safetensors.torch import load_file

        def read(position: int, out: States) -> None:
            tensors = load_file(folder / f"{position:06d}.safetensors")
            for slot, layer in enumerate(LAYERS):
                # numpy's copy is one thread's; torch's would take as many as it likes.
                out[slot] = tensors[str(layer)].numpy()

        yield read


class TorchSave(Peer):
    """A torch.save file a sample, mapped and copied: SpecForge's way."""

    name = layout = "torch-save"
    reading = "torch.save a sample, load(mmap) + copy"
    writing = "torch.save a sample"
    checks = False
    packages = (("torch", "torch"),)

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        import torch

        for position in range(len(corpus)):
            states = torch.from_numpy(corpus.states(position))
            # A tensor that is a view would take its whole storage along.
            torch.save(
                {str(layer): states[slot].clone() for slot, layer in enumerate(LAYERS)},
                folder / f"{position:06d}.pt",
            )

    @contextmanager
    def reader(self, _corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        import torch

        def read(position: int, out: States) -> None:
            tensors = torch.load(folder / f"{position:06d}.pt", mmap=True, weights_only=True)
            for slot, layer in enumerate(LAYERS):
                out[slot] = tensors[str(layer)].numpy()

        yield read


class BigShard(Peer):
    """All samples in one plain file that is mapped once: DeepSpec's way."""

    name = layout = "mmap"
    reading = "one big file, mmap + copy"
    writing = "one big file"
    checks = False
    packages = ()

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        with (folder / "samples.bin").open("wb", buffering=0) as file:
            for position in range(len(corpus)):
                write_whole(file.fileno(), corpus.states(position))

    @contextmanager
    def reader(self, corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        mapped = np.memmap(folder / "samples.bin", dtype=np.float16, mode="r")
        flat = np.asarray(mapped).reshape(-1, len(LAYERS) * HIDDEN)
        starts = list(accumulate(corpus.lengths, initial=0))

        def read(position: int, out: States) -> None:
            out[...] = flat[starts[position] : starts[position + 1]].reshape(out.shape)

        yield read


def write_whole(descriptor: int, states: States) -> None:
    """Write all of an array: one call takes at most 2 GiB."""
    left = states.data.cast("B")
    while left:
        left = left[os.write(descriptor, left) :]
