"""Storage formats behind torch's own DataLoader: our shards through zarr-python, and MDS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from eagle3data.bench.corpus import HIDDEN, LAYERS, Corpus
from eagle3data.bench.loaders.base import Document, Epoch, LoaderPeer
from eagle3data.bench.peers.ours import LAYOUT, Eagle3Data
from eagle3data.storage.layout import INPUT_IDS, states_array

Item = dict[str, Any]


class _Samples(LoaderPeer):
    """A batch is a sample: its ids, and its states layer by layer."""

    packs = False

    def documents(self, batch: Any, /) -> list[Document]:
        return [
            (np.asarray(batch["ids"]), [np.asarray(one, np.float32) for one in batch["states"]])
        ]

    def tokens(self, batch: Any, /) -> int:
        return len(batch["ids"])


class ZarrSamples:
    """Our arrays as zarr-python reads them, for a DataLoader's worker processes."""

    def __init__(self, folder: Path, offsets: list[int], lengths: list[int]) -> None:
        """Open nothing yet."""
        self._folder, self._offsets, self._lengths = str(folder), offsets, lengths
        self._arrays: list[Any] = []

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, position: int) -> Item:
        import torch
        import zarr

        if not self._arrays:
            group: Any = zarr.open_group(self._folder, mode="r")
            self._arrays = [group[INPUT_IDS], *(group[states_array(layer)] for layer in LAYERS)]
        start = self._offsets[position]
        rows = slice(start, start + self._lengths[position])
        ids, *states = (torch.from_numpy(array[rows]) for array in self._arrays)
        return {"ids": ids, "states": states}


class ZarrDataLoader(_Samples):
    """zarr-python in a DataLoader, shuffled."""

    name = "zarr"
    title = "zarr-python, DataLoader"
    checks = True
    packages = (("zarr", "zarr"), ("torch", "torch"))
    layout = LAYOUT

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        Eagle3Data().write(corpus, folder)

    @contextmanager
    def opened(self, corpus: Corpus, folder: Path, workers: int | None, /) -> Iterator[Epoch]:
        samples = ZarrSamples(folder, corpus.offsets, corpus.lengths)
        with _data_loader(samples, workers, shuffle=True) as epoch:
            yield epoch


class MdsSamples:
    """What turns an MDS row into tensors, in a DataLoader's worker processes."""

    def __call__(self, row: Item) -> Item:
        """Ids, and `[T, 7168]` of each layer; the bytes that were read, not copied."""
        import torch

        def tensor(data: bytes, dtype: Any) -> torch.Tensor:
            return torch.frombuffer(bytearray(data), dtype=dtype)

        states = [tensor(row[str(layer)], torch.float16).view(-1, HIDDEN) for layer in LAYERS]
        return {"ids": tensor(row["ids"], torch.int64), "states": states}


class MdsDataLoader(_Samples):
    """MosaicML's StreamingDataset of local uncompressed shards in a DataLoader, shuffled."""

    name = layout = "mds"
    title = "MosaicML MDS, DataLoader"
    checks = False
    packages = (("streaming", "mosaicml-streaming"), ("torch", "torch"))

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        from streaming import MDSWriter

        columns = dict.fromkeys(["ids", *map(str, LAYERS)], "bytes")
        with MDSWriter(out=str(folder), columns=columns, size_limit=1 << 28) as writer:
            for position in range(len(corpus)):
                states = corpus.states(position)
                row = {str(layer): states[n].tobytes() for n, layer in enumerate(LAYERS)}
                ids = corpus.sample(position).input_ids.astype(np.int64)
                writer.write({"ids": ids.tobytes(), **row})

    @contextmanager
    def opened(self, _corpus: Corpus, folder: Path, workers: int | None, /) -> Iterator[Epoch]:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        samples = StreamingDataset(local=str(folder), shuffle=True, batch_size=1)
        with _data_loader(samples, workers, collate_fn=MdsSamples()) as epoch:
            yield epoch


@contextmanager
def _data_loader(samples: Any, workers: int | None, **settings: Any) -> Iterator[Epoch]:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        samples,
        batch_size=None,
        num_workers=workers or 0,
        persistent_workers=bool(workers),
        multiprocessing_context="spawn" if workers else None,
        **settings,
    )
    yield lambda: cast("Iterable[Item]", loader)
    loader._iterator = None
