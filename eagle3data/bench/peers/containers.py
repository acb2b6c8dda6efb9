"""Containers of other fields: HDF5, MosaicML's MDS, Lance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from eagle3data.bench.corpus import HIDDEN, LAYERS, Corpus, States
from eagle3data.bench.peers.base import Peer, ReadSample

_FILE_BYTES = 1 << 30


class Hdf5(Peer):
    """A contiguous HDF5 array a layer, read straight into the buffer."""

    name = layout = "hdf5"
    reading = "HDF5 contiguous, read_direct"
    writing = "HDF5 contiguous, write_direct"
    checks = False
    packages = (("h5py", "h5py"),)

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        import h5py

        starts = list(accumulate(corpus.lengths, initial=0))
        with h5py.File(folder / "states.h5", "w") as file:
            arrays = [
                file.create_dataset(str(layer), (starts[-1], HIDDEN), dtype="<f2")
                for layer in LAYERS
            ]
            for position in range(len(corpus)):
                states = corpus.states(position)
                for slot, array in enumerate(arrays):
                    array.write_direct(
                        states[slot], dest_sel=np.s_[starts[position] : starts[position + 1]]
                    )

    @contextmanager
    def reader(self, corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        import h5py

        starts = list(accumulate(corpus.lengths, initial=0))
        with h5py.File(folder / "states.h5", "r") as file:
            arrays = [file[str(layer)] for layer in LAYERS]

            def read(position: int, out: States) -> None:
                rows = np.s_[starts[position] : starts[position + 1]]
                for slot, array in enumerate(arrays):
                    array.read_direct(out[slot], source_sel=rows)

            yield read


class Mds(Peer):
    """MosaicML's MDS shards, uncompressed, a column of bytes a layer."""

    name = layout = "mds"
    reading = "MosaicML MDS"
    writing = "MosaicML MDS"
    checks = False
    packages = (("streaming", "mosaicml-streaming"),)

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        from streaming import MDSWriter

        columns = {str(layer): "bytes" for layer in LAYERS}
        with MDSWriter(out=str(folder), columns=columns, size_limit=_FILE_BYTES) as writer:
            for position in range(len(corpus)):
                states = corpus.states(position)
                writer.write({str(layer): states[n].tobytes() for n, layer in enumerate(LAYERS)})

    @contextmanager
    def reader(self, _corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        from streaming import LocalDataset

        samples = LocalDataset(str(folder))

        def read(position: int, out: States) -> None:
            _fill(out, samples[position])

        yield read


class Lance(Peer):
    """A Lance table with a row a sample, a column of bytes a layer, rows taken by position."""

    name = layout = "lance"
    reading = "Lance, take"
    writing = "Lance"
    checks = False
    packages = (("lance", "pylance"), ("pyarrow", "pyarrow"))

    def write(self, corpus: Corpus, folder: Path, /) -> None:
        import lance
        import pyarrow as pa

        schema = pa.schema([(str(layer), pa.large_binary()) for layer in LAYERS])

        def batches() -> Iterator[pa.RecordBatch]:
            for position in range(len(corpus)):
                columns = [
                    pa.array([states.data.cast("B")], pa.large_binary())
                    for states in corpus.states(position)
                ]
                yield pa.record_batch(columns, schema=schema)

        lance.write_dataset(batches(), str(folder / "states"), schema=schema)

    @contextmanager
    def reader(self, _corpus: Corpus, folder: Path, /) -> Iterator[ReadSample]:
        import lance

        table = lance.dataset(str(folder / "states"))

        def read(position: int, out: States) -> None:
            row = table.take([position])
            _fill(out, {name: row[name][0].as_buffer() for name in row.column_names})

        yield read


def _fill(out: States, columns: Mapping[str, Any]) -> None:
    for slot, layer in enumerate(LAYERS):
        out[slot] = np.frombuffer(columns[str(layer)], np.float16).reshape(out.shape[1:])
