"""`bench reader`: whole samples into one reused buffer, warm and cold, ours and the peers'."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from eagle3data.bench.corpus import Corpus, States
from eagle3data.bench.limits import RAW_COPY, checked_copy, raw_copy, raw_copy_shared
from eagle3data.bench.machine import Machine, core_count
from eagle3data.bench.page_cache import PlainReader, drop, files_below
from eagle3data.bench.peers import BASELINE
from eagle3data.bench.peers.base import Peer, ReadSample
from eagle3data.bench.peers.ours import LAYOUT, Eagle3Data
from eagle3data.bench.report import Section, section
from eagle3data.bench.turns import Case, take_turns
from eagle3data.schema.errors import CorruptionError, InputError, SpaceError

Tell = Callable[[str], None]
_PLAIN_READ = "plain sequential read"
_POISON = np.uint16(0xFFFF)
"""A NaN that no sample holds: what a reader leaves unwritten shows."""


class ReaderBench:
    """The samples in every layout below one scratch folder, and the cases that read them."""

    def __init__(
        self, corpus: Corpus, peers: Sequence[Peer], scratch: Path, machine: Machine, tell: Tell
    ) -> None:
        """Write every layout once and check what each reader delivers.

        Raises:
            CorruptionError: a reader delivered other bytes than were written.
            SpaceError: the scratch folder's disk hasn't the room.
        """
        self._corpus = corpus
        self._scratch = scratch
        self._machine = machine
        self._tell = tell
        self._listed = list(peers)
        ours = [Eagle3Data(threads) for threads in sorted({1, 2, core_count()})]
        self._readers: list[Peer] = [*ours, *(peer for peer in peers if peer.available())]
        self._out = corpus.buffer()
        self._plain = PlainReader()
        self._write_layouts(ours[0])
        for peer in self._readers:
            tell(f"checking what {peer.reading} delivers")
            verify(peer, corpus, self._folder(peer), self._out)

    def _write_layouts(self, ours: Peer) -> None:
        owners = {ours.layout: ours}
        owners.update({peer.layout: peer for peer in self._readers if peer.layout == peer.name})
        require_room(self._scratch, len(owners) * self._corpus.nbytes)
        for layout, owner in owners.items():
            self._tell(f"writing the samples: {owner.writing}")
            folder = self._scratch / layout
            folder.mkdir()
            owner.write(self._corpus, folder)

    def _folder(self, peer: Peer) -> Path:
        return self._scratch / peer.layout

    def warm(self, rounds: int) -> Section:
        """Random sample order, everything in the page cache, readers kept open."""
        corpus, out = self._corpus, self._out
        order = corpus.random_order(seed=1)
        base = self._baseline()
        with ExitStack() as opened:
            cases = self._limits(order, base)
            for peer in self._readers:
                read = opened.enter_context(peer.reader(corpus, self._folder(peer)))
                cases.append(
                    Case(
                        name=peer.reading,
                        run=partial(deliver, read, corpus, order, out),
                        # What other cases pushed out of the cache comes back before the clock
                        # starts, so it is always a warm read that is timed.
                        before=partial(self._plain.read, files_below(self._folder(peer))),
                        nbytes=corpus.nbytes,
                        checks=peer.checks,
                        base=base,
                    )
                )
            self._tell("reading, warm")
            timings = take_turns(cases, rounds)
        return section("Reading samples, warm, random order", base, timings, self._listed)

    def _baseline(self) -> str:
        named = {peer.name: peer.reading for peer in self._readers}
        return named.get(BASELINE, RAW_COPY)

    def _limits(self, order: list[int], base: str) -> list[Case]:
        corpus, out, cores = self._corpus, self._out, core_count()
        limit = partial(Case, nbytes=corpus.nbytes, base=base)
        files = files_below(self._scratch / LAYOUT)
        return [
            limit(name=RAW_COPY, run=partial(raw_copy, corpus, order, out)),
            limit(
                name=f"{RAW_COPY}, {cores} threads",
                run=partial(raw_copy_shared, corpus, order, out, cores),
            ),
            limit(
                name=f"{RAW_COPY} + CRC32C of the copy",
                run=partial(checked_copy, corpus, order, out),
            ),
            Case(
                name=f"{_PLAIN_READ} of eagle3data's files",
                run=partial(self._plain.read, files),
                before=partial(self._plain.read, files),
                nbytes=_size(files),
                base=base,
            ),
        ]

    def cold(self, rounds: int) -> Section:
        """Each reader opened and read after its files left the page cache, in two orders.

        Raises:
            InputError: no block device below the scratch folder, so nothing could show it.
        """
        if self._machine.device is None:
            raise InputError(
                f"--cold needs a --folder on a disk; {self._scratch} is on "
                f"{self._machine.file_system}, where no device counts what it delivers."
            )
        cases: list[Case] = []
        orders = {
            "file order": list(range(len(self._corpus))),
            "random order": self._corpus.random_order(seed=2),
        }
        for peer in self._readers:
            files = files_below(self._folder(peer))
            plain = f"{_PLAIN_READ} of {peer.layout}'s files"
            if plain not in {case.name for case in cases}:
                cases.append(self._cold_case(plain, files, partial(self._plain.read, files), plain))
            for name, order in orders.items():
                run = partial(self._open_and_deliver, peer, order)
                cases.append(
                    self._cold_case(f"{peer.reading}, {name}", files, run, plain, peer.checks)
                )
        self._tell("reading, cold")
        timings = take_turns(cases, rounds, self._machine.device)
        return section(
            "Reading samples, cold (dropped from the page cache)",
            "a plain read of the same files",
            timings,
            self._listed,
        )

    def _cold_case(
        self,
        name: str,
        files: list[Path],
        run: Callable[[], object],
        base: str,
        checks: bool | None = None,
    ) -> Case:
        def before() -> None:
            gc.collect()  # a map that still waits for the collector would keep its pages
            drop(files)

        nbytes = _size(files) if name == base else self._corpus.nbytes
        return Case(name=name, run=run, before=before, nbytes=nbytes, base=base, checks=checks)

    def _open_and_deliver(self, peer: Peer, order: list[int]) -> None:
        with peer.reader(self._corpus, self._folder(peer)) as read:
            deliver(read, self._corpus, order, self._out)


def deliver(read: ReadSample, corpus: Corpus, order: Sequence[int], out: States) -> None:
    """Read samples one after another into the same buffer."""
    for position in order:
        read(position, out[:, : corpus.lengths[position]])


def verify(peer: Peer, corpus: Corpus, folder: Path, out: States) -> None:
    """Read every sample and compare it with what was written.

    Raises:
        CorruptionError: `peer_differs`, at the first sample that is not equal to the bit.
    """
    with peer.reader(corpus, folder) as read:
        for position, length in enumerate(corpus.lengths):
            into = out[:, :length]
            into.view(np.uint16)[...] = _POISON
            read(position, into)
            if not np.array_equal(into.view(np.uint16), corpus.states(position).view(np.uint16)):
                raise CorruptionError(
                    "peer_differs",
                    f"{peer.reading} delivered other bytes than were written, so its speed means "
                    "nothing; leave it out with --peers",
                    url=str(folder),
                    sample_id=corpus.sample(position).sample_id,
                )


def require_room(folder: Path, nbytes: int) -> None:
    """Refuse a folder whose disk can't take so many bytes and a tenth more.

    Raises:
        SpaceError: with what is free and what is needed.
    """
    free = shutil.disk_usage(folder).free
    if free < nbytes * 1.1:
        raise SpaceError(
            f"{folder} has {free:,} bytes free; the samples in every layout take about "
            f"{nbytes:,}. Choose fewer --peers, less --bytes or another --folder."
        )


def scratch_below(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A scratch folder that is gone when it is left.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"--folder {folder} is no folder.")
    return tempfile.TemporaryDirectory(dir=folder, prefix="eagle3data-bench-")


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)
