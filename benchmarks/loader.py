"""The streaming loader against raw copies of the same bytes into the same buffers.

Samples are `[T, 4, 7168]` float16 of 200 to 4,000 tokens, packed to 8,192 tokens a batch, in the
page cache. The raw copy reads nothing but the states: no checksum, no ids, no mask.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from eagle3data import DatasetWriter, Sample, StreamingLoader, open_dataset
from eagle3data.bench.turns import Case, Timing, take_turns
from eagle3data.readers.dataset import Dataset
from eagle3data.readers.host_buffers import HostBuffers
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout

HIDDEN, LAYERS, VOCABULARY, BUDGET = 7168, [2, 30, 58, 61], 163_840, 8192
SHORTEST, LONGEST = 200, 4000

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def write_samples(
    url: str, nbytes: int, *, hidden: int = HIDDEN, vocabulary: int = VOCABULARY
) -> Dataset:
    """A set of at least `nbytes` of states."""
    rng = np.random.default_rng(0)
    manifest = Manifest.synthetic(
        hidden_size=hidden,
        num_hidden_layers=61,
        vocab_size=vocabulary,
        layers=LAYERS,
        axis=TokenAxis(shard_tokens=17_408, chunk_tokens=64),
    )
    block = rng.standard_normal((LONGEST * 2, hidden), dtype=np.float32).astype(np.float16)
    written = number = 0
    with DatasetWriter.create(url, manifest) as writer:
        while written < nbytes:
            length = int(rng.integers(SHORTEST, LONGEST + 1))
            first = int(rng.integers(0, LONGEST))
            states = dict.fromkeys(LAYERS, block[first : first + length])
            writer.append(
                Sample(
                    hidden_states=states,
                    input_ids=rng.integers(0, vocabulary, length),
                    loss_mask=np.ones(length, np.uint8),
                    sample_id=f"s{number}",
                )
            )
            written += length * len(LAYERS) * hidden * 2
            number += 1
    return open_dataset(url)


def stream(loader: StreamingLoader) -> None:
    """A whole epoch through the loader; nothing is done with its batches."""
    for _ in loader:
        pass


class RawCopy:
    """The same samples from the mapped files into buffers that go round, as the loader's do."""

    def __init__(self, dataset: Dataset, packs: Sequence[Sequence[int]], threads: int) -> None:
        """Map nothing yet."""
        self._dataset, self._packs = dataset, packs
        self._pool = ThreadPoolExecutor(threads)
        self._buffers = HostBuffers((len(LAYERS), BUDGET, dataset.manifest.hidden_size), np.float16)
        self._maps: dict[str, Bytes] = {}
        self._offsets = dataset.index["token_offset"].to_numpy()

    def run(self) -> None:
        """Copy all of it."""
        for pack in self._packs:
            buffer = self._buffers.take()
            start, works = 0, []
            for position in pack:
                stop = start + self._dataset.length(position)
                for at, layer in enumerate(LAYERS):
                    out = buffer[at, start:stop].reshape(-1).view(np.uint8)
                    works.append(self._pool.submit(self._copy, position, layer, out))
                start = stop
            for work in works:
                work.result()

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


def main() -> None:
    """Print speeds, and their ratios to the raw copy with as many threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=3_000_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        dataset = write_samples(str(folder / "set"), options.bytes)
        _report(dataset, options.rounds)
    finally:
        shutil.rmtree(folder)


def _report(dataset: Dataset, rounds: int) -> None:
    loader = StreamingLoader(dataset, token_budget=BUDGET, rank=0, world_size=1)
    packs = loader.packs
    nbytes = dataset.tokens * len(LAYERS) * HIDDEN * 2
    padding = 1 - dataset.tokens / (len(packs) * BUDGET)
    print(
        f"{len(dataset)} samples, {dataset.tokens:,} tokens, {nbytes / 1e9:.1f} GB, {len(packs)} "
        f"batches, {padding:.2%} padding"
    )
    cases = []
    for threads in (1, 2):
        raw = f"raw copy, {threads} threads"
        cases.append(_case(raw, RawCopy(dataset, packs, threads).run, nbytes))
        for verify in ("bytes", "none", "states"):
            checked = StreamingLoader(
                dataset,
                token_budget=BUDGET,
                rank=0,
                world_size=1,
                threads=threads,
                verify=verify,
                prefetch_bytes=0,
            )
            title = f"loader, {threads} threads, verify={verify}"
            cases.append(_case(title, partial(stream, checked), nbytes, raw))
    for case in cases:
        case.run()  # pages are mapped, memory is touched for the first time
    timings = {timing.case.name: timing for timing in take_turns(cases, rounds)}
    for name, timing in timings.items():
        print(_line(name, timing, timings))


def _case(name: str, run: Callable[[], object], nbytes: int, base: str | None = None) -> Case:
    return Case(name=name, run=run, nbytes=nbytes, base=base)


def _line(name: str, timing: Timing, timings: dict[str, Timing]) -> str:
    base = timings.get(timing.case.base or "")
    ratio = f"{timing.speed / base.speed:.2f} of raw" if base else ""
    speeds = [timing.case.nbytes / seconds / 1e9 for seconds in timing.seconds]
    spread = f"({min(speeds):.2f} to {max(speeds):.2f})"
    return f"{name:36} {timing.speed / 1e9:6.2f} GB/s {spread}  {ratio}"


if __name__ == "__main__":
    main()
