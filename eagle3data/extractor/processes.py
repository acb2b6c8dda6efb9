"""The processes that an extraction started: marked, found again, and ended for certain.

Engines start processes of their own, in ways of their own, and a killed extraction leaves them to
nobody. So a run marks what it starts. What is executed anew inherits the environment, which
`/proc/<pid>/environ` shows; what is merely forked has its parent's old one there, but inherits its
memory, and `/proc/<pid>/maps` shows a mapping whose name is the mark.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from eagle3data.storage.owner import Owner

RUN = "EAGLE3DATA_RUN"
GRACE_SECONDS = 10.0
"""What a process gets to end by itself after SIGTERM."""
_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.05
_ROUNDS = 3
_COMMAND_CHARACTERS = 100


@dataclass(frozen=True)
class ProcessFacts:
    """A process as people know it; kept, since one that has ended can't be asked any more."""

    pid: int
    name: str
    command: str

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessFacts:
        """Of a process, as far as it may be asked."""
        name = command = ""
        try:
            name = process.name()
            command = " ".join(" ".join(process.cmdline()).split())
        except psutil.Error:
            pass
        return cls(process.pid, name or "unknown", command[:_COMMAND_CHARACTERS] or name)

    def __str__(self) -> str:
        return f"{self.pid} ({self.command or self.name})"


@dataclass(frozen=True)
class Run:
    """An extraction as its processes show it.

    Attributes:
        owner: the process that started the others.
        processes: those that carry its mark, itself among them while it lives, by pid.
    """

    owner: Owner
    processes: list[psutil.Process]

    @property
    def is_orphaned(self) -> bool:
        """Whether its owner is known to have ended, so that nobody ends these processes."""
        return self.owner.is_gone


@contextmanager
def marked_run() -> Iterator[None]:
    """Mark this process, and whatever it starts in the meantime, as one extraction's."""
    token = Owner.current().token
    if os.environ.get(RUN) == token:
        yield
        return
    descriptor = os.memfd_create(f"{RUN}={token}")
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        mapping = mmap.mmap(descriptor, mmap.PAGESIZE)
    finally:
        os.close(descriptor)
    # setproctitle, which vLLM and Ray call, else writes over what /proc/<pid>/environ shows.
    marks = {RUN: token, "SPT_NOENV": "1"}
    before = {name: os.environ.get(name) for name in marks}
    os.environ.update(marks)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        mapping.close()


def our_runs() -> list[Run]:
    """The extractions of this user that have processes on this machine."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        token = _mark_of(process)
        if token is not None and not has_ended(process):
            found.setdefault(token, []).append(process)
    owners = {token: Owner.from_token(token) for token in found}
    runs = [Run(owner, found[token]) for token, owner in owners.items() if owner is not None]
    return sorted(runs, key=lambda run: run.owner.pid)


def is_ours(process: psutil.Process) -> bool:
    """Whether a process is an extraction's, of this user."""
    return _mark_of(process) is not None


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended; one that its parent did not ask about yet has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def end_process_tree(
    roots: Iterable[psutil.Process], *, grace: float = GRACE_SECONDS
) -> list[psutil.Process]:
    """End processes and all their descendants: SIGTERM, then SIGKILL to those that stay.

    This process and those that it runs in are left alone.

    Args:
        roots: of any owner; a process id that was given to another since is not touched.
        grace: seconds between the two signals.

    Returns:
        Those that did not end: they belong to another user, or hang in the kernel.
    """
    tree = with_descendants(roots)
    _signal(tree, psutil.Process.terminate)
    left = with_descendants(_wait(tree, grace))
    _signal(left, psutil.Process.kill)
    left = _wait(left, _KILL_SECONDS)
    for tracker in left:
        _try(tracker, psutil.Process.kill)
    return _wait(left, _KILL_SECONDS)


def end_own_children(
    *, keep: Collection[int] = (), grace: float = GRACE_SECONDS
) -> list[ProcessFacts]:
    """End whatever this process started, directly or not, and wait until it is gone.

    Descendants that carry no mark end too.

    Args:
        keep: ids of processes to leave alone, as `own_pids` gave them before.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        Those that did not end.
    """
    left: list[psutil.Process] = []
    for _ in range(_ROUNDS):
        started = [process for process in _own_children() if process.pid not in keep]
        if not started:
            return []
        left = end_process_tree(started, grace=grace)
    return [ProcessFacts.of(process) for process in left]


def own_pids() -> set[int]:
    """Ids of the processes that `end_own_children` would end."""
    return {process.pid for process in _own_children()}


def with_descendants(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes and what they started, without this process and those that it runs in."""
    tree: dict[psutil.Process, None] = {}
    for root in roots:
        tree[root] = None
        try:
            tree.update(dict.fromkeys(root.children(recursive=True)))
        except psutil.Error:
            continue
    return [process for process in tree if not is_this_or_around(process)]


def is_this_or_around(process: psutil.Process) -> bool:
    """Whether it is this process, or one that it runs in."""
    me = psutil.Process()
    return process == me or process in me.parents()


def _own_children() -> set[psutil.Process]:
    me = psutil.Process()
    mine = Owner.current()
    started = set(me.children(recursive=True))
    for run in our_runs():
        if run.owner == mine:
            started.update(run.processes)
    return {
        process
        for process in started - {me, *me.parents()}
        if not has_ended(process) and not (_is_tracker(process) and process.ppid() == me.pid)
    }


def _mark_of(process: psutil.Process) -> str | None:
    """The mark of a process of this user; None where there is none, or it may not be asked."""
    try:
        if process.uids().real != os.getuid():
            return None
        return process.environ().get(RUN) or _mapped_mark(process.pid)
    except (psutil.Error, OSError):
        return None


def _mapped_mark(pid: int) -> str | None:
    name = f"/memfd:{RUN}=".encode()
    for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
        if name in line:
            return line.partition(name)[2].removesuffix(b" (deleted)").decode()
    return None


def _signal(processes: Iterable[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        # It ends when the last process that uses it has, and removes their shared memory.
        if not _is_tracker(process):
            _try(process, send)


def _is_tracker(process: psutil.Process) -> bool:
    """Whether it is multiprocessing's resource tracker."""
    try:
        return any("resource_tracker import main" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _try(process: psutil.Process, send: Callable[[psutil.Process], None]) -> None:
    try:
        send(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        # Gone already, or somebody else's: the wait shows which.
        return


def _wait(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until they have ended, and no longer than so many seconds; those that have not."""
    # psutil.wait_procs would take a child's exit code from whoever started it, and wait for ever
    # for one that has ended where the first process of a container asks about none.
    until = time.monotonic() + seconds
    while left := [process for process in processes if not has_ended(process)]:
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_SECONDS)
    return left
