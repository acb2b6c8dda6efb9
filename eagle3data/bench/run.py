"""One run of `bench reader`, `writer` or `loader`: samples, cases, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from eagle3data.bench.codec_profiles import (
    chunks_of_corpus,
    chunks_of_set,
    codec_costs,
    codec_table,
)
from eagle3data.bench.corpus import HIDDEN, LAYERS, Corpus
from eagle3data.bench.loaders.base import LoaderPeer
from eagle3data.bench.machine import Machine, mount_of
from eagle3data.bench.peers.base import Peer
from eagle3data.bench.reader import ReaderBench, scratch_below
from eagle3data.bench.report import Report, Section, Table
from eagle3data.bench.writer import MEMORY_FOLDER, bench_writing

Tell = Callable[[str], None]


def bench_reader(
    *,
    folder: Path,
    peers: Sequence[Peer],
    nbytes: int,
    rounds: int,
    cold: bool,
    states: str | None,
    tell: Tell,
) -> Report:
    """Measure reading.

    Args:
        folder: where the samples are written meanwhile.
        peers: who else reads them; those that are not installed are listed as such.
        nbytes: bytes of all samples together, at least.
        rounds: how often each case runs.
        cold: read with an empty page cache too.
        states: URL of a set whose states the codec table is about; synthetic ones by default.
        tell: told what is being done.
    """
    machine = Machine.here(folder)
    # Before the long part, so that a wrong URL is known at once.
    real = chunks_of_set(states) if states else None
    corpus = Corpus(nbytes)
    with scratch_below(folder) as place:
        bench = ReaderBench(corpus, peers, Path(place), machine, tell)
        sections = [bench.warm(rounds)]
        if cold:
            sections.append(bench.cold(rounds))
    tell("codec profiles")
    chunks = real or chunks_of_corpus(corpus)
    what = f"the states of {states}" if states else "synthetic states (normal, bfloat16 precision)"
    table = codec_table(codec_costs(chunks, rounds), chunks, what)
    return _report("reader", machine, corpus, rounds, sections, [table])


def bench_writer(
    *, folder: Path, peers: Sequence[Peer], nbytes: int, rounds: int, tell: Tell
) -> Report:
    """Measure writing, on the folder's disk and, where Linux has one, in its tmpfs.

    Args:
        folder: where the samples are written.
        peers: who else writes them; those that are not installed are listed as such.
        nbytes: bytes of all samples together, at least.
        rounds: how often each case runs.
        tell: told what is being done.
    """
    machine = Machine.here(folder)
    corpus = Corpus(nbytes)
    places = [(folder, machine.file_system)]
    if machine.file_system != "tmpfs" and MEMORY_FOLDER.is_dir():
        places.append((MEMORY_FOLDER, mount_of(MEMORY_FOLDER)[0]))
    sections = []
    for where, file_system in places:
        title = f"Writing samples and fsync, {file_system}"
        with scratch_below(where) as place:
            sections.append(bench_writing(corpus, peers, Path(place), title, rounds, tell))
    return _report("writer", machine, corpus, rounds, sections, [])


def bench_loader(
    *,
    folder: Path,
    peers: Sequence[LoaderPeer],
    nbytes: int,
    rounds: int,
    cold: bool,
    tell: Tell,
) -> Report:
    """Measure whole epochs of batches.

    Args:
        folder: where the samples are written meanwhile.
        peers: whose loaders else stream them; those that are not installed are listed as such.
        nbytes: bytes of all samples together, at least.
        rounds: how often each case runs.
        cold: with an empty page cache too.
        tell: told what is being done.
    """
    from eagle3data.bench.loader import TOKENS, LoaderBench

    machine = Machine.here(folder)
    corpus = Corpus(nbytes, tokens=TOKENS)
    with scratch_below(folder) as place:
        bench = LoaderBench(corpus, peers, Path(place), machine, tell)
        sections = [bench.warm(rounds)]
        if cold:
            sections.append(bench.cold(rounds))
    return _report("loader", machine, corpus, rounds, sections, [])


def _report(
    what: str,
    machine: Machine,
    corpus: Corpus,
    rounds: int,
    sections: list[Section],
    tables: list[Table],
) -> Report:
    storage = corpus.manifest.storage
    data = (
        f"{len(corpus)} samples [T, {len(LAYERS)}, {HIDDEN}] float16, T from "
        f"{min(corpus.lengths):,} to {max(corpus.lengths):,}, {corpus.nbytes / 1e9:.2f} GB; "
        f"eagle3data: profile none, chunks of {storage.chunk_tokens} tokens, shards of "
        f"{storage.shard_tokens:,}"
    )
    return Report(
        what=what,
        machine=machine,
        data=data,
        nbytes=corpus.nbytes,
        rounds=rounds,
        sections=sections,
        tables=tables,
        notes=_notes(machine, corpus),
    )


def _notes(machine: Machine, corpus: Corpus) -> list[str]:
    if corpus.nbytes > 2 * machine.l3_bytes:
        return []
    return [
        f"Note: the data ({corpus.nbytes / 1e6:,.0f} MB) is less than twice the L3 cache "
        f"({machine.l3_bytes / 1e6:,.0f} MB), so these are speeds of the cache. Give more --bytes."
    ]
