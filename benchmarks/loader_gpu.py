"""What reaches a GPU through the streaming loader, and what a training step waits for it.

Samples are `[T, 4, 7168]` float16 of 200 to 4,000 tokens, packed to 8,192 tokens a batch.
First a step that does nothing: loaders in one process and in eight that share the GPU, against
plain copies of as many bytes from page-locked memory, in turns. Then the trainer's own step on a
draft of that width: batches from the loader against one batch used again and again, in turns.

On a machine without a GPU it runs too (try it with small numbers): nothing is copied then, and
the figures mean little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.loader_figures import ON_GPU, Results, synchronize, write_samples
from benchmarks.loader_step import real_step
from eagle3data import StreamingLoader, open_dataset
from eagle3data.bench.corpus import HIDDEN, LAYERS, VOCABULARY
from eagle3data.bench.loaders.base import BUDGET
from eagle3data.bench.loaders.ours import RawCopy
from eagle3data.bench.turns import Case, take_turns

_ROOM = 0.85
"""Share of the folder's free bytes that the samples may take."""


def open_loader(url: str, threads: int, **settings: Any) -> StreamingLoader:
    """A loader to the GPU, where there is one."""
    device = "cuda" if ON_GPU else None
    settings = {"rank": 0, "world_size": 1, **settings}
    return StreamingLoader(
        open_dataset(url), token_budget=BUDGET, threads=threads, device=device, **settings
    )


def null_steps(loader: StreamingLoader) -> None:
    """An epoch whose steps do nothing."""
    for _ in loader:
        pass
    synchronize()


class PlainCopy:
    """One page-locked buffer of a batch's size, copied to the GPU until it was enough."""

    def __init__(self, batch_bytes: int) -> None:
        """Take both buffers."""
        self._host = torch.ones(batch_bytes, dtype=torch.uint8, pin_memory=ON_GPU)
        self._device = torch.empty_like(self._host, device="cuda" if ON_GPU else "cpu")

    def run(self, nbytes: int) -> None:
        """Copy so many bytes, and wait for the end."""
        while nbytes > 0:
            count = min(nbytes, self._host.nbytes)
            self._device[:count].copy_(self._host[:count], non_blocking=True)
            nbytes -= count
        synchronize()


def one_process(url: str, options: argparse.Namespace, results: Results) -> None:
    """Null steps in this process, in turns with plain copies."""
    dataset = open_dataset(url)
    nbytes = dataset.tokens * len(LAYERS) * dataset.manifest.hidden_size * 2
    plain = PlainCopy(BUDGET * len(LAYERS) * dataset.manifest.hidden_size * 2)
    cases = [Case(name="plain pinned copy", run=lambda: plain.run(nbytes), nbytes=nbytes)]

    def add(name: str, run: Callable[[], object]) -> None:
        cases.append(Case(name=name, run=run, nbytes=nbytes, base="plain pinned copy"))

    for threads in options.threads:
        loader = open_loader(url, threads)
        packs = loader.packs
        add(f"loader, {threads} threads", partial(null_steps, loader))
    most = max(options.threads)
    unchecked = open_loader(url, most, verify="none")
    add(f"loader, {most} threads, unchecked", partial(null_steps, unchecked))
    add(f"raw copy on the host, {most} threads", RawCopy(dataset, packs, most).run)
    for case in cases:
        case.run()  # memory is page-locked and touched for the first time
    timings = {timing.case.name: timing for timing in take_turns(cases, options.rounds)}
    base = timings["plain pinned copy"].speed
    for name, timing in timings.items():
        speeds = [nbytes / seconds / 1e9 for seconds in timing.seconds]
        results.add(
            f"1 process: {name}",
            f"{timing.speed / 1e9:6.2f} GB/s ({min(speeds):.2f} to {max(speeds):.2f}), "
            f"{timing.speed / base:.2f} of plain",
            gigabytes_per_second=timing.speed / 1e9,
            of_plain=timing.speed / base,
            rounds=speeds,
        )
    results.tell(f"the last loader says: {loader.metrics}; {loader._buffers.made} buffers")


def many_processes(url: str, options: argparse.Namespace, results: Results) -> None:
    """Null steps in several processes at once, then as many bytes copied plainly in each."""
    context = multiprocessing.get_context("spawn")
    base = None
    for threads in options.many_threads:
        world = options.processes
        barrier, answers = context.Barrier(world), context.Queue()
        arguments = (url, world, threads, options.rounds, barrier, answers)
        processes = [
            context.Process(target=_one_of_many, args=(rank, *arguments), daemon=True)
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        found = list(_answers(answers, processes))
        for process in processes:
            process.join()
        if base is None:
            base = _together(found, "plain")
            name = f"{world} processes: plain pinned copy"
            results.add(name, f"{base:6.2f} GB/s together", gigabytes_per_second=base)
        speed = _together(found, "loader")
        resident = max(one["resident"] for one in found)
        results.add(
            f"{world} processes: loader, {threads} threads",
            f"{speed:6.2f} GB/s together, {speed / base:.2f} of plain; "
            f"{resident / 1e9:.2f} GB resident at most in one",
            gigabytes_per_second=speed,
            of_plain=speed / base,
            resident_bytes=resident,
        )


def _answers(answers: Any, processes: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """One of each process; the others would wait for ever for one that fails."""
    missing = len(processes)
    while missing:
        try:
            yield answers.get(timeout=1)
            missing -= 1
        except queue.Empty:
            codes = [process.exitcode for process in processes]
            if any(codes):
                raise SystemExit(f"a process failed; their exit codes are {codes}") from None


def _together(found: list[dict[str, Any]], kind: str) -> float:
    """GB/s from the first one's start to the last one's end."""
    seconds = max(one[kind][1] for one in found) - min(one[kind][0] for one in found)
    return float(sum(one["bytes"] for one in found) / seconds / 1e9)


def _one_of_many(
    rank: int, url: str, world: int, threads: int, epochs: int, barrier: Any, answers: Any
) -> None:
    torch.set_num_threads(1)
    loader = open_loader(url, threads, rank=rank, world_size=world, prefetch_bytes=0)
    null_steps(loader)
    hidden = loader.documents.manifest.hidden_size
    plain = PlainCopy(BUDGET * len(LAYERS) * hidden * 2)
    plain.run(1)
    barrier.wait()
    began, nbytes = time.perf_counter(), 0
    for _ in range(epochs):
        null_steps(loader)
        nbytes += loader.metrics.bytes
    answer: dict[str, Any] = {"loader": (began, time.perf_counter()), "bytes": nbytes}
    barrier.wait()
    began = time.perf_counter()
    plain.run(nbytes)
    answer["plain"] = (began, time.perf_counter())
    answer["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answers.put(answer)


@contextmanager
def _scratch(place: Path | None) -> Iterator[Path]:
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> None:
    """Print a line a figure, then all of them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of the samples; best in memory")
    parser.add_argument("--target-folder", type=Path, help="of the target's weights")
    parser.add_argument("--bytes", type=int, default=12_000_000_000)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--threads", type=_numbers, default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--many-threads", type=_numbers, default=[1, 2])
    parser.add_argument("--step-budget", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=4, help="of a kind in a row")
    parser.add_argument("--step-rounds", type=int, default=2)
    parser.add_argument("--only", choices=["one", "many", "step"], default=None)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    results = Results()
    try:
        _measure(options, results)
    finally:
        gpu = torch.cuda.get_device_name() if ON_GPU else "no GPU"
        text = json.dumps({"gpu": gpu, "hidden": options.hidden, **results.figures}, indent=1)
        print(text)
        if options.json is not None:
            options.json.write_text(text)


def _measure(options: argparse.Namespace, results: Results) -> None:
    with _scratch(options.folder) as folder, _scratch(options.target_folder) as other:
        nbytes = min(options.bytes, int(_ROOM * shutil.disk_usage(folder).free))
        dataset = write_samples(
            str(folder / "set"), nbytes, hidden=options.hidden, vocabulary=options.vocabulary
        )
        text = f"{len(dataset)} samples, {dataset.tokens:,} tokens, {nbytes / 1e9:.1f} GB"
        results.add("set", text, bytes=nbytes, samples=len(dataset), tokens=dataset.tokens)
        if options.only in {None, "one"}:
            one_process(dataset.url, options, results)
        if options.only in {None, "many"}:
            many_processes(dataset.url, options, results)
        if options.only in {None, "step"}:
            real_step(dataset.url, other, options, results)


if __name__ == "__main__":
    main()
