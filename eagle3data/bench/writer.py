"""`bench writer`: samples to durable files, ours and the peers', on disk and in memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from eagle3data.bench.corpus import Corpus
from eagle3data.bench.page_cache import sync_below
from eagle3data.bench.peers.base import Peer
from eagle3data.bench.peers.ours import Eagle3Data, ShardsOnly
from eagle3data.bench.peers.sample_files import BigShard
from eagle3data.bench.reader import require_room, verify
from eagle3data.bench.report import Section, section
from eagle3data.bench.turns import Case, take_turns

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - the tmpfs that Linux mounts there, on purpose
RAW_WRITE = "raw write"


def bench_writing(
    corpus: Corpus,
    peers: Sequence[Peer],
    place: Path,
    title: str,
    rounds: int,
    tell: Callable[[str], None],
) -> Section:
    """Every writer in turn: an empty folder, the samples, fsync of every file and folder.

    A peer's files are synced after its last one, all in one go, which is the kindest way; ours
    syncs what it commits as it goes, and is synced once more.

    Args:
        corpus: the samples.
        peers: who else writes.
        place: scratch folder on the medium to measure.
        title: of the section.
        rounds: how often each.
        tell: told what is being done.

    Raises:
        CorruptionError: what a writer wrote does not read back equal.
        SpaceError: not enough room.
    """
    require_room(place, corpus.nbytes)
    # A big file of all samples IS the raw write.
    others = [peer for peer in peers if peer.name != BigShard.name]
    writers = [Eagle3Data(), ShardsOnly(), *(peer for peer in others if peer.available())]
    _try_each([BigShard(), *writers], place, tell)
    case = partial(_case, corpus, place)
    cases = [case(BigShard(), RAW_WRITE, None)]
    cases += [case(peer, peer.writing, peer.checks) for peer in writers]
    tell(title.lower())
    timings = take_turns(cases, rounds)
    return section(title, RAW_WRITE, timings, others, writing=True)


def _case(corpus: Corpus, place: Path, peer: Peer, name: str, checks: bool | None) -> Case:
    folder = place / peer.name

    def before() -> None:
        os.sync()  # no case pays for another's dirty pages
        folder.mkdir()

    def run() -> None:
        peer.write(corpus, folder)
        sync_below(folder)

    return Case(
        name=name,
        run=run,
        before=before,
        after=partial(shutil.rmtree, folder),
        nbytes=corpus.nbytes,
        checks=checks,
        base=RAW_WRITE,
    )


def _try_each(writers: Sequence[Peer], place: Path, tell: Callable[[str], None]) -> None:
    """Write and read back a few tokens: imports are paid here, and a wrong writer is found."""
    few = Corpus(nbytes=1 << 20, seed=3)
    for peer in writers:
        tell(f"checking what {peer.writing} writes")
        folder = place / peer.name
        folder.mkdir()
        peer.write(few, folder)
        verify(peer, few, folder, few.buffer())
        shutil.rmtree(folder)
