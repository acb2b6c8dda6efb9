"""`status` and `status --follow` beside a process that writes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3data.storage.claims import Claims, shard_name
from eagle3data.storage.ledger import record_failure
from tests.planned import LENGTH, PlannedSet, at
from tests.support import Command

FOLLOW = ("--follow", "--interval", "0.1")


@pytest.fixture
def planned(tmp_path: Path) -> PlannedSet:
    return PlannedSet(str(tmp_path / "set"), 3)


def start(*words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "eagle3data.cli.main", "status", *words]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """The next line with a text; the test ends here where none comes."""
    assert process.stdout is not None
    return next(line for line in process.stdout if text in line)


def test_follows_a_writer_until_all_is_committed(planned: PlannedSet) -> None:
    with start(planned.root.url, *FOLLOW) as follower:
        begun = line_with(follower, "shards 0 of 3")
        assert "no shard committed yet" in begun
        planned.commit(0, written_at=at(0))
        line_with(follower, "shards 1 of 3")
        planned.commit(2, written_at=at(10))
        second = line_with(follower, "shards 2 of 3")
        assert "10 tokens/s on average; left 10 s for 100 tokens; disk " in second
        record_failure(planned.root, shard=1, sample_id="x", kind="nonfinite", reason="it is NaN")
        line_with(follower, "failed 1; it is NaN")
        with Claims(planned.root) as claims:
            claims.acquire(shard_name(1))
            line_with(follower, "claims 1")
        planned.claim_of_the_dead(1)
        stale = line_with(follower, "stale")
        assert "00000001: process " in stale
        assert "its process has ended, the next worker takes it over" in stale
        planned.commit(1, written_at=at(20))
        line_with(
            follower, "shards 3 of 3; tokens 300 of 300; 10 tokens/s on average; left nothing"
        )
        assert follower.communicate()[1] == ""
        assert follower.returncode == 0


def test_one_document_a_line(planned: PlannedSet) -> None:
    planned.commit(0)
    with start(planned.root.url, *FOLLOW, "--json") as follower:
        assert json.loads(line_with(follower, "url"))["shards"] == {"planned": 3, "committed": 1}
        planned.commit(1)
        second = json.loads(line_with(follower, '"committed": 2'))
        assert (second["complete"], second["tokens"]["committed"]) == (False, 2 * LENGTH)
        planned.commit(2)
        last = json.loads(line_with(follower, '"committed": 3'))
        assert last["complete"]
        assert follower.wait() == 0


def test_interrupted(planned: PlannedSet) -> None:
    with start(planned.root.url, *FOLLOW) as follower:
        line_with(follower, "0 of 3")
        follower.send_signal(signal.SIGINT)
        _, said = follower.communicate()
        assert (follower.returncode, said) == (130, "interrupted.\n")


def test_a_finished_set_is_followed_for_one_look(planned: PlannedSet, command: Command) -> None:
    for shard in range(3):
        planned.commit(shard, written_at=at(10 * shard))
    done = command("status", planned.root.url, "--follow", "--interval", "3600")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1


def test_redrawn_on_a_terminal(planned: PlannedSet) -> None:
    ours, theirs = pty.openpty()
    with start(planned.root.url, *FOLLOW, stdout=theirs) as follower:
        os.close(theirs)
        for shard in range(3):
            planned.commit(shard, written_at=at(10 * shard))
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # the terminal is gone with its last process
            pass
        assert follower.wait() == 0
    os.close(ours)
    assert b"300 of 300" in shown


def test_a_look(planned: PlannedSet, command: Command) -> None:
    planned.commit(0)
    planned.claim_elsewhere(1, age=3600)
    for number in range(12):
        record_failure(
            planned.root, shard=2, sample_id=f"s{number}", kind="nonfinite", reason=f"bad {number}"
        )
    text = command("status", planned.root.url).stdout
    assert "1 of 3 committed" in text
    assert "stale: on another machine and silent for long, unless a clock is wrong" in text
    assert "and 2 more failures; --json lists them all" in text
    facts: dict[str, Any] = json.loads(command("status", planned.root.url, "--json").stdout)
    assert len(facts["failures"]) == 12
    assert [claim["stale"] for claim in facts["claims"]] == [True]
    assert facts["free_bytes_at_end"] < facts["free_bytes"]


def test_damage_is_code_1(planned: PlannedSet, command: Command) -> None:
    planned.commit(0)
    (Path(planned.root.path) / "index/00000000.arrow").write_bytes(b"torn")
    done = command("status", planned.root.url)
    assert (done.returncode, "shard 0: its index part can't be read" in done.stdout) == (1, True)
    assert command("status", planned.root.url + "/nothing").returncode == 2
