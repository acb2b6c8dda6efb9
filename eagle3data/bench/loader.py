"""`bench loader`: whole epochs of batches, ours and the peers', against raw copies of the bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
Opening = Callable[[], AbstractContextManager[Callable[[], object]]]
"""Opens something that is run epoch by epoch."""


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
        self._tokens: dict[LoaderPeer, int] = {}

    def warm(self, rounds: int) -> Section:
        """Epochs with everything in the page cache, after one that is not timed."""
        cases = []
        for threads in _RAW_THREADS:
            opening = partial(raw_copy, self._scratch / LAYOUT, threads)
            turn = _Turn(opening, self._plain, files_below(self._scratch / LAYOUT))
            cases.append(turn.case(_raw(threads), self._corpus.nbytes))
        for peer, workers in self._all():
            base = _raw(min(workers or max(_RAW_THREADS), max(_RAW_THREADS)))
            turn = _Turn(self._opening(peer, workers), self._plain, self._files(peer))
            nbytes = self._delivered(peer, workers)
            cases.append(turn.case(peer.case(workers), nbytes, checks=peer.checks, base=base))
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
        for peer, workers in self._all():
            files = self._files(peer)
            plain = f"plain sequential read of {peer.layout}'s files"
            if plain not in {case.name for case in cases}:
                size = sum(file.stat().st_size for file in files)
                run = partial(self._plain.read, files)
                cases.append(Case(name=plain, run=run, before=partial(drop, files), nbytes=size))
            turn = _Turn(self._opening(peer, workers), None, files, maps=peer.keeps_files)
            nbytes = self._delivered(peer, workers)
            cases.append(turn.case(peer.case(workers), nbytes, checks=peer.checks, base=plain))
        self._tell("streaming, cold")
        timings = take_turns(cases, rounds, self._machine.device)
        rows = [row(timing, {one.case.name: one for one in timings}) for timing in timings]
        title = "Whole epochs, cold (dropped from the page cache)"
        return Section(title=title, base="a plain read of the same files", rows=self._noted(rows))

    def _opening(self, peer: LoaderPeer, workers: int | None) -> Opening:
        @contextmanager
        def opened() -> Iterator[Callable[[], object]]:
            folder = self._scratch / peer.layout
            with peer.opened(self._corpus, folder, workers) as epoch:
                yield partial(stream, peer, epoch)

        return opened

    def _delivered(self, peer: LoaderPeer, workers: int | None) -> int:
        """Bytes of the states that an epoch delivers: some packers leave samples out."""
        if peer not in self._tokens:
            self._tell(f"counting what {peer.case(workers)} delivers")
            with peer.opened(self._corpus, self._scratch / peer.layout, 1) as epoch:
                self._tokens[peer] = stream(peer, epoch)
        return self._tokens[peer] * TOKEN_BYTES

    def _all(self) -> list[tuple[LoaderPeer, int | None]]:
        return [(peer, workers) for peer in self._peers for workers in peer.counts]

    def _files(self, peer: LoaderPeer) -> list[Path]:
        return files_below(self._scratch / peer.layout)

    def _noted(self, rows: list[Row]) -> list[Row]:
        notes = {peer.case(workers): _note(peer) for peer, workers in self._all()}
        rows = [replace(one, note=notes.get(one.case, "")) for one in rows]
        absent = [
            Row(case=peer.title, checks=peer.checks, note=NOT_INSTALLED) for peer in self._absent
        ]
        return rows + absent


class _Turn:
    """What one case does round after round; between its turns it holds neither memory nor workers.

    Each is opened and run once before the clock starts: workers are there, pages are mapped.
    """

    def __init__(
        self,
        opening: Opening,
        plain: PlainReader | None,
        files: list[Path],
        *,
        maps: bool = False,
    ) -> None:
        """Open nothing yet.

        Args:
            opening: of what is run.
            plain: what brings the files into the page cache before the clock starts; None drops
                them from it.
            files: what is read.
            maps: it keeps files mapped, and they would stay in the page cache; so it is opened
                while the clock runs.
        """
        self._opening, self._plain, self._files, self._maps = opening, plain, files, maps
        self._stack = ExitStack()
        self._run: Callable[[], object] | None = None

    def case(
        self, name: str, nbytes: int, *, checks: bool | None = None, base: str | None = None
    ) -> Case:
        """Its case."""
        return Case(
            name=name,
            run=self._timed,
            before=self._before,
            after=self._close,
            nbytes=nbytes,
            checks=checks,
            base=base,
        )

    def _before(self) -> None:
        if not self._maps:
            self._run = self._stack.enter_context(self._opening())
            self._run()
        if self._plain is not None:
            self._plain.read(self._files)
            return
        gc.collect()  # a map that still waits for the collector would keep its pages
        drop(self._files)

    def _timed(self) -> None:
        if self._run is None:
            self._run = self._stack.enter_context(self._opening())
        self._run()

    def _close(self) -> None:
        self._run = None
        self._stack.close()


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


def _note(peer: LoaderPeer) -> str:
    packing = "" if peer.packs else "; a batch is a sample"
    return peer.versions() + packing
