"""eagle3data itself, through its public interface: every chunk's checksum compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from eagle3data.bench.corpus import LAYERS, Corpus, States
from eagle3data.bench.machine import core_count
from eagle3data.bench.peers.base import Peer, ReadSample
from eagle3data.readers.dataset import open_dataset
from eagle3data.storage.arrays import chunk_codec, states_fill
from eagle3data.storage.layout import shard_object, states_array
from eagle3data.storage.root import Root
from eagle3data.storage.shard_decoder import ShardDecoder
from eagle3data.storage.shard_encoder import ShardEncoder
from eagle3data.writers.dataset_writer import DatasetWriter

LAYOUT = "eagle3data"


class Eagle3Data(Peer):
    """A data set written by `DatasetWriter` and read by `Dataset.read_into`."""

    name = layout = LAYOUT
    writing = "eagle3data, checksums and statistics"
    checks = True
    packages = (("eagle3data", "eagle3data"),)

    def __init__(self, threads: int = 1) -> None:
        """Read each sample with so many threads."""
        self.threads = threads
        self.reading = f"eagle3data, {threads} thread{'s' if threads > 1 else ''}"

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        with DatasetWriter.create(str(folder), corpus.manifest) as writer:
            for position in range(len(corpus)):
                writer.append(corpus.sample(position))

    @contextmanager
    def reader(self, _corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        dataset = open_dataset(str(folder), threads=self.threads)

        def read(position: int, out: States) -> None:
            dataset.read_into(position, out)

        yield read


class ShardsOnly(Peer):
    """The shard encoder alone: checksums, no statistics, no index; what zarr writers do too."""

    name = layout = "eagle3data-shards"
    writing = "eagle3data, shards with checksums only"
    checks = True
    packages = (("eagle3data", "eagle3data"),)

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        root = Root(str(folder))
        axis = corpus.manifest.storage.axis
        by_shard: dict[int, list[int]] = {}
        for position, offset in enumerate(corpus.offsets):
            by_shard.setdefault(axis.shard_of(offset), []).append(position)
        with ThreadPoolExecutor(core_count()) as pool:
            for shard, positions in by_shard.items():
                jobs = [(corpus, root, shard, positions, slot) for slot in range(len(LAYERS))]
                list(pool.map(lambda job: _write_layer(*job), jobs))

    @contextmanager
    def reader(self, corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        root, axis = Root(str(folder)), corpus.manifest.storage.axis

        def read(position: int, out: States) -> None:
            offset, length = corpus.offsets[position], corpus.lengths[position]
            shard, chunks = axis.shard_of(offset), axis.chunks_of(offset, length)
            for slot, layer in enumerate(LAYERS):
                array = states_array(layer)
                decoder = ShardDecoder(
                    root,
                    chunk_codec(corpus.manifest, array),
                    array=array,
                    shard=shard,
                    name=shard_object(array, shard),
                    chunks=axis.chunks_per_shard,
                )
                decoder.read(chunks, out[slot], f"s{position:06d}")

        yield read


def _write_layer(
    corpus: Corpus, root: Root, shard: int, positions: Sequence[int], slot: int
) -> None:
    """One layer's object of a shard, sample after sample."""
    axis, array = corpus.manifest.storage.axis, states_array(LAYERS[slot])
    codec = chunk_codec(corpus.manifest, array)
    encoder, upload = ShardEncoder(axis.chunks_per_shard), root.begin(shard_object(array, shard))
    for position in positions:
        states, rows = corpus.states(position)[slot], axis.chunk_tokens
        for at, number in enumerate(
            axis.chunks_of(corpus.offsets[position], corpus.lengths[position])
        ):
            chunk = states[at * rows : (at + 1) * rows]
            if len(chunk) < rows:
                whole = np.full(codec.shape, states_fill(corpus.manifest), dtype=codec.dtype)
                whole[: len(chunk)] = chunk
                chunk = whole
            upload.write(encoder.add(number, codec.encode(chunk)))
    upload.write(encoder.finish())
    upload.commit()
