"""Other readers and writers of the very same Zarr v3 arrays: zarr-python, zarrs, tensorstore."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from eagle3data.bench.corpus import LAYERS, Corpus, States
from eagle3data.bench.peers.base import Peer, ReadSample
from eagle3data.bench.peers.ours import LAYOUT
from eagle3data.storage.arrays import metadata_documents
from eagle3data.storage.layout import states_array


class _ZarrArrays(Peer):
    """Reads samples as slices of our arrays; writes whole shards, as these libraries like best.

    A shard that is written in pieces is read and written again for each, so the writer here
    gathers a shard's rows first.
    """

    checks = True
    layout = LAYOUT

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        for name, document in metadata_documents(corpus.manifest, corpus.shards).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(document)
        tokens = corpus.manifest.storage.shard_tokens
        arrays = self._open(folder)
        with self._pipeline():
            for shard in range(corpus.shards):
                for layer, rows in corpus.shard_rows(shard):
                    arrays[layer][shard * tokens : shard * tokens + len(rows)] = rows

    @contextmanager
    def reader(self, corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        arrays = self._open(folder)

        def read(position: int, out: States) -> None:
            start = corpus.offsets[position]
            with self._pipeline():
                for slot, layer in enumerate(LAYERS):
                    self._read(arrays[layer], start, start + out.shape[1], out[slot])

        yield read

    @abstractmethod
    def _open(self, folder: Path) -> dict[int, Any]:
        """Each layer's array."""

    def _pipeline(self) -> AbstractContextManager[object]:
        """What has to be set while these arrays are opened and used."""
        return nullcontext()

    def _read(self, array: Any, start: int, stop: int, out: States) -> None:
        out[...] = array[start:stop]


class ZarrPython(_ZarrArrays):
    """zarr-python with its own codec pipeline."""

    name = "zarr-python"
    reading = "zarr-python, our shards"
    writing = "zarr-python, the same shards"
    packages: tuple[tuple[str, str], ...] = (("zarr", "zarr"),)

    def _open(self, folder: Path) -> dict[int, Any]:
        import zarr

        with self._pipeline():
            group: Any = zarr.open_group(str(folder), mode="r+")
            return {layer: group[states_array(layer)] for layer in LAYERS}


class Zarrs(ZarrPython):
    """zarr-python with the codec pipeline of the Rust library zarrs."""

    name = "zarrs"
    reading = "zarrs pipeline, our shards"
    writing = "zarrs pipeline, the same shards"
    packages = (("zarr", "zarr"), ("zarrs", "zarrs"))

    def _pipeline(self) -> AbstractContextManager[object]:
        import zarr
        import zarrs  # noqa: F401 - registers the pipeline

        pipeline: AbstractContextManager[object] = zarr.config.set(
            {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
        )
        return pipeline


class TensorStore(_ZarrArrays):
    """tensorstore's zarr3 driver."""

    name = "tensorstore"
    reading = "tensorstore, our shards"
    writing = "tensorstore, the same shards"
    packages = (("tensorstore", "tensorstore"),)

    def _open(self, folder: Path) -> dict[int, Any]:
        import tensorstore

        return {
            layer: tensorstore.open(
                {
                    "driver": "zarr3",
                    "kvstore": {"driver": "file", "path": str(folder / states_array(layer))},
                },
                open=True,
            ).result()
            for layer in LAYERS
        }

    def _read(self, array: Any, start: int, stop: int, out: States) -> None:
        import tensorstore

        tensorstore.array(out).write(array[start:stop]).result()
