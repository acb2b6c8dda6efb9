"""A tree of processes to end; run as a program, each says its role and its pid on stdout.

owner   marks itself, starts `child`, forks `forked`; the child starts `stubborn`, which ignores
        SIGTERM.
foreign does the same without a mark.
lead    is an owner with a daemon and shared memory; told by a line on stdin, it ends what it
        started, says so, and goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from multiprocessing.shared_memory import SharedMemory

from eagle3data.extractor.processes import end_own_children, marked_run

_marks = ExitStack()


def say(name: str, value: object = "") -> None:
    os.write(1, f"{name} {value or os.getpid()}\n".encode())


def start(role: str) -> None:
    subprocess.Popen([sys.executable, __file__, role])


def mark() -> None:
    _marks.enter_context(marked_run())


def fork(role: str) -> None:
    if os.fork() == 0:
        say(role)
        signal.pause()


def daemon() -> None:
    """A process that nobody is the parent of any more."""
    if os.fork() == 0:
        os.setsid()
        fork("daemon")
        os._exit(0)
    os.wait()


def wait_for_ever() -> None:
    say("spawned")
    signal.pause()


def lead() -> None:
    mark()
    start("child")
    fork("forked")
    daemon()
    shared = SharedMemory(create=True, size=16)
    process = multiprocessing.get_context("spawn").Process(target=wait_for_ever)
    process.start()
    say("lead")
    sys.stdin.readline()
    say("left", len(end_own_children(grace=0.5)) or "none")
    shared.unlink()
    shared.close()


def main(role: str) -> None:
    if role == "lead":
        lead()
        return
    if role in {"owner", "foreign"}:
        if role == "owner":
            mark()
        start("child")
        fork("forked")
    elif role == "child":
        start("stubborn")
    elif role == "titled":
        import_module("setproctitle").setproctitle("VLLM::EngineCore")
    elif role == "titled-owner":
        mark()
        start("titled")
    elif role == "small-owner":
        mark()
        fork("forked")
    elif role == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(role)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
