"""`validate --level full`: bytes a second, against the disk (cold) and the reader (warm).

Cold: the same files read front to back into one buffer, both after the files were taken out of the
page cache. Warm: the set opened and every sample read, checked, into one reused buffer. Cases take
turns.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from eagle3data.bench.corpus import Corpus
from eagle3data.bench.machine import Machine
from eagle3data.bench.page_cache import PlainReader, drop, files_below, sync_below
from eagle3data.bench.turns import Case, take_turns
from eagle3data.readers.dataset import open_dataset
from eagle3data.validation.validate import validate
from eagle3data.writers.dataset_writer import DatasetWriter


def write(corpus: Corpus, folder: Path) -> str:
    """The corpus as a data set."""
    with DatasetWriter.create(str(folder), corpus.manifest) as writer:
        for position in range(len(corpus)):
            writer.append(corpus.sample(position))
    sync_below(folder)
    return str(folder)


def full(url: str) -> Callable[[], None]:
    """The check, in a process that has the set neither open nor mapped."""

    def run() -> None:
        report = validate(url, "full")
        if not report.ok:
            raise SystemExit(f"the set is not clean: {report.to_json()}")

    return run


def main() -> None:
    """Write a set, time the cases, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, default=8_000_000_000)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    corpus = Corpus(options.bytes, codec=options.codec)
    options.folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        url = write(corpus, place / "set")
        files = files_below(place / "set")
        out = corpus.buffer()
        order = corpus.random_order(seed=1)
        lengths = corpus.lengths
        del corpus  # the page cache needs the memory
        nbytes = sum(file.stat().st_size for file in files)
        print(Machine.here(options.folder).line())
        print(f"{nbytes / 1e9:.2f} GB in {len(files)} files, codec {options.codec}")
        plain = PlainReader()

        def raw() -> None:
            plain.read(files)

        def dropped() -> None:
            drop(files)

        cold = [
            Case(name="disk, plain sequential read", run=raw, nbytes=nbytes, before=dropped),
            Case(name="validate full, cold", run=full(url), nbytes=nbytes, before=dropped),
        ]
        _print(cold, options.rounds)

        def read_all() -> None:
            dataset = open_dataset(url)  # as the check does, from closed files on
            for position in order:
                dataset.read_into(position, out[:, : lengths[position]])
                dataset.read_tokens(position)

        raw()
        warm = [
            Case(name="reader, every sample checked", run=read_all, nbytes=nbytes, before=raw),
            Case(name="validate full, warm", run=full(url), nbytes=nbytes, before=raw),
        ]
        _print(warm, options.rounds)
    finally:
        shutil.rmtree(place)


def _print(cases: list[Case], rounds: int) -> None:
    timings = take_turns(cases, rounds)
    base = timings[0].speed
    for timing in timings:
        each = " ".join(f"{seconds:.2f}" for seconds in timing.seconds)
        print(
            f"{timing.case.name:<30} {timing.speed / 1e9:6.2f} GB/s  {timing.speed / base:5.2f}x"
            f"  ({each} s)"
        )


if __name__ == "__main__":
    main()
