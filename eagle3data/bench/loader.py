"""`bench loader`: whole epochs of batches, ours and the peers', against raw copies of the bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from eagle3data.bench.corpus import TOKEN_BYTES, Corpus
from eagle3data.bench.loaders.base import Epoch, LoaderPeer
from eagle3data.bench.loaders.ours import Streaming, Unchecked, raw_copy
from eagle3data.bench.machine import Machine
from eagle3data.bench.page_cache import PlainReader, drop, files_below
from eagle3data.bench.peers.ours import LAYOUT
from eagle3data.bench.reader import require_room
from eagle3data.bench.report import NOT_INSTALLED, Row, Section, row
from eagle3data.bench.turns import Case, take_turns
from eagle3data.schema.errors import CorruptionError, InputError

TOKENS = (200, 4000)
"""Of a sample, from and to."""
_VERIFIED_BYTES = 8 << 20
_RAW_THREADS = (1, 2)

Tell = Callable[[str], None]
Opened = tuple[LoaderPeer, int | None]


class LoaderBench:
    """The samples in every layout below one scratch folder, and the cases that stream them."""

    def __init__(
        self,
        corpus: Corpus,
        peers: Sequence[LoaderPeer],
        scratch: Path,
        machine: Machine,
        tell: Tell,
    ) -> None:
        """Check what each loader delivers of a few samples, then write all in every layout.

        Raises:
            CorruptionError: a loader delivered other samples than were written.
            SpaceError: the scratch folder's disk hasn't the room.
        """
        self._corpus, self._scratch, self._machine, self._tell = corpus, scratch, machine, tell
        self._absent = [peer for peer in peers if not peer.available()]
        self._peers = [Streaming(), Unchecked(), *(peer for peer in peers if peer.available())]
        few = Corpus(_VERIFIED_BYTES, seed=3, tokens=TOKENS)
        for peer in self._peers:
            tell(f"checking what {peer.title} delivers")
            folder = scratch / f"few-{peer.name}"
            folder.mkdir()
            peer.write(few, folder)
            verify(peer, few, folder)
        layouts = {peer.layout: peer for peer in reversed(self._peers)}
        require_room(scratch, len(layouts) * corpus.nbytes)
        for layout, peer in layouts.items():
            tell(f"writing the samples for {peer.title}")
            (scratch / layout).mkdir()
            peer.write(corpus, scratch / layout)
        self._plain = PlainReader()

    def warm(self, rounds: int) -> Section:
        """Epochs with everything in the page cache, loaders and their workers kept."""
        cases: list[Case] = []
        with ExitStack() as opened:
            for threads in _RAW_THREADS:
                run = raw_copy(self._scratch / LAYOUT, threads)
                cases.append(Case(name=_raw(threads), run=run, nbytes=self._corpus.nbytes))
            for peer, workers in self._all():
                epoch = opened.enter_context(
                    peer.opened(self._corpus, self._scratch / peer.layout, workers)
                )
                cases.append(
                    Case(
                        name=peer.case(workers),
                        run=partial(stream, peer, epoch),
                        nbytes=self._corpus.nbytes,
                        before=partial(self._plain.read, self._files(peer)),
                        checks=peer.checks,
                        base=_raw(min(workers or max(_RAW_THREADS), max(_RAW_THREADS))),
                    )
                )
            cases = [self._warmed(case) for case in cases]
            self._tell("streaming, warm")
            timings = take_turns(cases, rounds)
        rows = [row(timing, {one.case.name: one for one in timings}) for timing in timings]
        title = "Whole epochs, warm"
        return Section(title=title, base="a raw copy with as many threads", rows=self._noted(rows))

    def cold(self, rounds: int) -> Section:
        """Epochs after the files left the page cache; processes that wait for work are kept.

        Raises:
            InputError: no block device below the scratch folder, so nothing could show it.
        """
        if self._machine.device is None:
            raise InputError(
                f"--cold needs a --folder on a disk; {self._scratch} is on "
                f"{self._machine.file_system}, where no device counts what it delivers."
            )
        cases: list[Case] = []
        with ExitStack() as opened:
            for peer, workers in self._all():
                files = self._files(peer)
                plain = f"plain sequential read of {peer.layout}'s files"
                if plain not in {case.name for case in cases}:
                    size = sum(file.stat().st_size for file in files)
                    run: Callable[[], object] = partial(self._plain.read, files)
                    cases.append(Case(name=plain, run=run, before=_dropping(files), nbytes=size))
                if peer.keeps_files:
                    run = partial(self._open_and_stream, peer, workers)
                else:
                    folder = self._scratch / peer.layout
                    epoch = opened.enter_context(peer.opened(self._corpus, folder, workers))
                    run = partial(stream, peer, epoch)
                case = Case(
                    name=peer.case(workers),
                    run=run,
                    before=_dropping(files),
                    nbytes=self._corpus.nbytes,
                    checks=peer.checks,
                    base=plain,
                )
                cases.append(self._warmed(case))
            self._tell("streaming, cold")
            timings = take_turns(cases, rounds, self._machine.device)
        rows = [row(timing, {one.case.name: one for one in timings}) for timing in timings]
        title = "Whole epochs, cold (dropped from the page cache)"
        return Section(title=title, base="a plain read of the same files", rows=self._noted(rows))

    def _all(self) -> list[Opened]:
        return [(peer, workers) for peer in self._peers for workers in peer.counts]

    def _files(self, peer: LoaderPeer) -> list[Path]:
        return files_below(self._scratch / peer.layout)

    def _open_and_stream(self, peer: LoaderPeer, workers: int | None) -> int:
        with peer.opened(self._corpus, self._scratch / peer.layout, workers) as epoch:
            return stream(peer, epoch)

    def _warmed(self, case: Case) -> Case:
        """Run it once: workers start, pages are mapped, and what it delivers is counted."""
        self._tell(f"trying {case.name}")
        tokens = case.run()
        return replace(case, nbytes=tokens * TOKEN_BYTES) if isinstance(tokens, int) else case

    def _noted(self, rows: list[Row]) -> list[Row]:
        notes = {peer.case(workers): _note(peer) for peer, workers in self._all()}
        rows = [replace(one, note=notes.get(one.case, "")) for one in rows]
        absent = [
            Row(case=peer.title, checks=peer.checks, note=NOT_INSTALLED) for peer in self._absent
        ]
        return rows + absent


def stream(peer: LoaderPeer, epoch: Epoch) -> int:
    """A whole epoch; nothing is done with its batches. Returns the samples' tokens."""
    return sum(map(peer.tokens, epoch()))


def verify(peer: LoaderPeer, corpus: Corpus, folder: Path) -> None:
    """Compare an epoch's samples with what was written; a packing loader may leave some out.

    Raises:
        CorruptionError: `peer_differs`, at the first sample that is not equal.
    """
    seen: set[int] = set()
    with peer.opened(corpus, folder, 1) as epoch:
        for batch in epoch():
            for ids, states in peer.documents(batch):
                position = int(ids[0])  # `Corpus.sample` numbers its samples so
                seen.add(position)
                expected = corpus.states(position)
                whole = np.array_equal(ids, corpus.sample(position).input_ids) and all(
                    np.array_equal(one, other) for one, other in zip(states, expected, strict=True)
                )
                if not whole:
                    raise _differs(peer, folder, f"sample {position} is not what was written")
    if not seen or (not peer.packs and len(seen) < len(corpus)):
        raise _differs(peer, folder, f"{len(seen)} of {len(corpus)} samples came")


def _differs(peer: LoaderPeer, folder: Path, what: str) -> CorruptionError:
    return CorruptionError(
        "peer_differs",
        f"of what {peer.title} delivered {what}, so its speed means nothing; leave it out with "
        "--peers",
        url=str(folder),
    )


def _raw(threads: int) -> str:
    return f"raw copy of the states, {threads} thread{'s' if threads > 1 else ''}"


def _dropping(files: list[Path]) -> Callable[[], None]:
    def before() -> None:
        gc.collect()  # a map that still waits for the collector would keep its pages
        drop(files)

    return before


def _note(peer: LoaderPeer) -> str:
    packing = "" if peer.packs else "; a batch is a sample"
    return peer.versions() + packing
