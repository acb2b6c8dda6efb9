"""`release`: what an extraction left behind is found and ended, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from eagle3data.extractor.processes import has_ended, is_ours, marked_run, our_runs
from eagle3data.extractor.release import release
from eagle3data.schema.errors import InputError
from tests.support import Command

pytestmark = pytest.mark.alone

PROGRAM = Path(__file__).parent / "process_tree.py"
TREE = {"child", "forked", "stubborn"}


class Tree:
    """A started tree; `processes` by role."""

    def __init__(self, role: str, others: set[str]) -> None:
        self.first = subprocess.Popen(
            [sys.executable, str(PROGRAM), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes: dict[str, psutil.Process] = {}
        while set(self.processes) < {role, *others}:
            name, pid = self.read()
            self.processes[name] = psutil.Process(int(pid))
        self.role = role

    def read(self) -> tuple[str, str]:
        assert self.first.stdout is not None
        name, value = self.first.stdout.readline().split()
        return name, value

    def kill_first(self) -> None:
        self.first.send_signal(signal.SIGKILL)
        self.first.wait()

    @property
    def alive(self) -> set[str]:
        return {name for name, process in self.processes.items() if not has_ended(process)}

    def close(self) -> None:
        for process in self.processes.values():
            if not has_ended(process):
                process.kill()
        self.first.communicate()


Start = Callable[..., Tree]


@pytest.fixture
def start() -> Iterator[Start]:
    trees: list[Tree] = []

    def begin(role: str, others: set[str] = TREE) -> Tree:
        trees.append(Tree(role, others))
        return trees[-1]

    yield begin
    for tree in trees:
        tree.close()


def test_orphans_are_found_and_ended_and_nothing_else(start: Start) -> None:
    dead, working, foreign = start("owner"), start("owner"), start("foreign")
    orphan_pids = {dead.processes[name].pid for name in TREE}
    dead.kill_first()
    seen = release(None, check=True)
    assert orphan_pids <= {fact.pid for fact in seen.left}
    assert not seen.is_free
    assert dead.alive == TREE
    done = release(None, grace=0.3)
    assert orphan_pids <= {fact.pid for fact in done.ended}
    assert done.is_free
    assert dead.alive == set()
    assert working.alive == {"owner", *TREE}
    assert foreign.alive == {"foreign", *TREE}
    (running,) = [run for run in done.running if run.owner.pid == working.first.pid]
    assert {fact.pid for fact in running.processes} == {
        process.pid for process in working.processes.values()
    }


def test_a_foreign_orphan_is_left_alone(start: Start) -> None:
    foreign = start("foreign")
    foreign.kill_first()
    release(None, grace=0.3)
    assert foreign.alive == TREE
    assert not any(
        is_ours(process) for process in foreign.processes.values() if process.is_running()
    )


def test_a_pid_is_ended_with_its_descendants_whoever_started_it(start: Start) -> None:
    foreign, other = start("foreign"), start("foreign")
    report = release(None, pids=[foreign.first.pid], grace=0.3)
    assert foreign.alive == set()
    assert other.alive == {"foreign", *TREE}
    assert {process.pid for process in foreign.processes.values()} <= {
        fact.pid for fact in report.ended
    }


def test_a_pid_that_can_t_be_meant_is_refused(start: Start) -> None:
    tree = start("owner")
    for pid in (os.getpid(), os.getppid(), 2**30):
        with pytest.raises(InputError, match=str(pid)):
            release(None, pids=[tree.first.pid, pid])
    assert tree.alive == {"owner", *TREE}


def test_the_lead_ends_what_it_started_and_goes_on(start: Start) -> None:
    lead = start("lead", {*TREE, "daemon", "spawned"})
    assert lead.first.stdin is not None
    lead.first.stdin.write("now\n")
    lead.first.stdin.flush()
    assert lead.read() == ("left", "none")
    assert lead.alive <= {"lead"}
    assert lead.first.wait() == 0


def test_a_process_title_does_not_hide_the_mark(start: Start) -> None:
    pytest.importorskip("setproctitle")
    tree = start("titled-owner", {"titled"})
    assert tree.processes["titled"].name() != "python"
    tree.kill_first()
    assert release(None, grace=0.3).ended
    assert tree.alive == set()


def test_the_command(start: Start, command: Command) -> None:
    tree = start("small-owner", {"forked"})
    pid = tree.first.pid
    done = command("release", "--check")
    assert f"--pid {pid}" in done.stdout
    assert tree.alive == {"small-owner", "forked"}
    tree.kill_first()
    done = command("release", "--check")
    assert (done.returncode, "left behind by a dead extraction" in done.stderr) == (1, True)
    done = command("release")
    assert f"ended {tree.processes['forked'].pid} (" in done.stdout
    assert tree.alive == set()
    assert all(run.owner.pid != pid for run in our_runs())
    assert command("release", "--pid", 2**30).returncode == 2


def test_a_run_that_is_over_is_none_any_more() -> None:
    """A program that extracts, then trains: `release --check` of the training sees no run."""
    before = dict(os.environ)
    with marked_run():
        with marked_run():
            assert is_ours(psutil.Process())
        assert is_ours(psutil.Process())
        child = Tree("foreign", TREE)
    assert not is_ours(psutil.Process())
    assert all(map(is_ours, child.processes.values()))
    child.close()
    assert dict(os.environ) == before
