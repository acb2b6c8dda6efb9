"""`StreamingLoader`, and what bounds it: raw copies of the same bytes into the same buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from eagle3data.bench.corpus import Corpus
from eagle3data.bench.loaders.base import BUDGET, Document, Epoch, LoaderPeer
from eagle3data.bench.peers.ours import LAYOUT, Eagle3Data
from eagle3data.readers.batch import Batch
from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.readers.host_buffers import HostBuffers
from eagle3data.readers.loader import StreamingLoader
from eagle3data.readers.reading import Verify
from eagle3data.storage import layout

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class Streaming(LoaderPeer):
    """eagle3data's loader, every chunk's checksum compared."""

    name = layout = LAYOUT
    title = "eagle3data"
    checks = True
    packs = True
    packages = (("eagle3data", "eagle3data"), ("torch", "torch"))
    keeps_files = True
    verify: Verify = "bytes"

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        Eagle3Data().write(corpus, folder)

    @contextmanager
    def opened(self, _corpus: Corpus, folder: Path, workers: int | None, /) -> Iterator[Epoch]:
        loader = open_loader(str(folder), threads=workers or 1, verify=self.verify)

        def epoch() -> Iterable[Batch]:
            loader.set_epoch(0)
            return loader

        yield epoch

    def documents(self, batch: Any, /) -> list[Document]:
        return [
            (
                batch.input_ids[first:last].numpy(),
                [states[first:last].float().numpy() for states in batch.hidden_states],
            )
            for first, last in pairwise(batch.cu_seqlens.tolist())
        ]

    def tokens(self, batch: Any, /) -> int:
        return int(batch.tokens)


class Unchecked(Streaming):
    """The same without checksums."""

    name = "eagle3data-unchecked"
    title = "eagle3data, no checksums"
    checks = False
    counts = (2,)
    verify: Verify = "none"

    def case(self, workers: int | None) -> str:
        return f"{self.title}, {workers} thread{'s' if workers != 1 else ''}"


def open_loader(url: str, **settings: Any) -> StreamingLoader:
    """A loader of batches of `BUDGET` tokens for the only rank, with the least memory."""
    return StreamingLoader(open_dataset(url), token_budget=BUDGET, rank=0, world_size=1, **settings)


class RawCopy:
    """The loader's samples from the mapped files into buffers that go round as its own do.

    Nothing but the states is read: no checksum, no ids, no mask.
    """

    def __init__(self, dataset: Dataset, packs: Sequence[Sequence[int]], threads: int) -> None:
        """Map nothing yet.

        Args:
            dataset: whose profile is `none`.
            packs: positions of each batch's samples.
            threads: that copy.
        """
        self._dataset, self._packs = dataset, packs
        self._layers = dataset.manifest.layers
        self._pool = ThreadPoolExecutor(threads)
        shape = (len(self._layers), BUDGET, dataset.manifest.hidden_size)
        self._buffers = HostBuffers(shape, np.float16)
        self._maps: dict[str, Bytes] = {}
        self._offsets = dataset.index["token_offset"].to_numpy()

    def run(self) -> None:
        """Copy all of it."""
        for pack in self._packs:
            buffer = self._buffers.take()
            start, works = 0, []
            for position in pack:
                stop = start + self._dataset.length(position)
                for at, layer in enumerate(self._layers):
                    out = buffer[at, start:stop].reshape(-1).view(np.uint8)
                    works.append(self._pool.submit(self._copy, position, layer, out))
                start = stop
            for work in works:
                work.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _copy(self, position: int, layer: int, out: Bytes) -> None:
        axis = self._dataset.manifest.storage.axis
        offset = int(self._offsets[position])
        array, shard = layout.states_array(layer), axis.shard_of(offset)
        path = self._dataset.root.join(layout.shard_object(array, shard))
        if path not in self._maps:
            self._maps[path] = np.memmap(path, mode="r")
        chunk = axis.chunks_of(offset, 1)[0]
        first = int(self._dataset.shard_reader(array, shard).index[chunk][0])
        np.copyto(out, self._maps[path][first : first + len(out)])


@contextmanager
def raw_copy(folder: Path, threads: int) -> Iterator[Callable[[], None]]:
    """A run that copies what an epoch of the loader delivers."""
    loader = open_loader(str(folder))
    copy = RawCopy(loader.documents.sets[0], loader.packs, threads)
    yield copy.run
    copy.close()
