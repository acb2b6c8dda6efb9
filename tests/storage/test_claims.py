"""One holder at a time, on any number of machines; the dead are followed, the living are not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3data.storage.claims import Claims, list_claims, read_claim
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root

HOLD = """
import sys, time
from eagle3data.storage.claims import Claims
from eagle3data.storage.root import Root
with Claims(Root(sys.argv[1])) as claims:
    print(claims.acquire("00000003") is not None, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    url = tmp_path / "set" if request.param == "local" else f"memory://{tmp_path.name}"
    return Root(str(url))


def _elsewhere(root: Root, name: str, *, beat: int = 0, attempt: int = 0) -> None:
    """A claim of a process on another machine."""
    owner = replace(Owner.current(), host="elsewhere", boot="0" * 32)
    document = {"owner": owner.as_dict(), "beat": beat, "renewed_at": ""}
    root.replace(f"claims/{name}.{attempt}", json.dumps(document).encode())


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


def test_one_holder_and_a_release(root: Root) -> None:
    with Claims(root) as one, Claims(root) as other:
        claim = one.acquire("00000003")
        assert claim is not None
        assert claim.is_held()
        assert other.acquire("00000003") is None
        assert other.acquire("00000004") is not None
        one.release("00000003")
        assert not claim.is_held()
        assert other.acquire("00000003") is not None
    assert list_claims(root) == {}


def test_a_killed_process_is_followed_at_once(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"True\n"
    with Claims(root) as claims:
        assert claims.acquire("00000003") is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        claim = claims.acquire("00000003")
        assert claim is not None
        assert claim.attempt == 1
        assert list_claims(root) == {"00000003": 1}


def test_another_machine_is_followed_when_it_stays_silent(root: Root) -> None:
    _elsewhere(root, "00000000")
    with Claims(root, stale_after=0.2) as claims:
        assert claims.acquire("00000000") is None
        _until(lambda: claims.acquire("00000000") is not None)
        assert list_claims(root) == {"00000000": 1}


def test_another_machine_that_is_known_to_be_gone_is_followed_at_once(root: Root) -> None:
    _elsewhere(root, "00000000")
    owner = replace(Owner.current(), host="elsewhere", boot="0" * 32)
    with Claims(root) as claims:
        claims.know_gone(replace(owner, pid=owner.pid + 1))
        assert claims.acquire("00000000") is None
        claims.know_gone(owner)
        claim = claims.acquire("00000000")
        assert claim is not None
        assert claim.attempt == 1
        assert list_claims(root) == {"00000000": 1}


def test_another_machine_that_renews_is_left_alone(root: Root) -> None:
    with Claims(root, stale_after=0.2) as claims:
        begin = time.monotonic()
        beat = 0
        # Five lives long; every look finds another heartbeat than the look before.
        while time.monotonic() - begin < 1.0:
            beat += 1
            _elsewhere(root, "00000000", beat=beat)
            assert claims.acquire("00000000") is None
    assert list_claims(root) == {"00000000": 0}


def test_the_heartbeat_is_seen(root: Root) -> None:
    with Claims(root, stale_after=0.04) as claims:
        assert claims.acquire("00000000") is not None
        first = read_claim(root, "00000000", 0)
        assert first is not None
        _until(lambda: read_claim(root, "00000000", 0) not in (first, None))


def test_one_of_many_takes_over(root: Root) -> None:
    _elsewhere(root, "00000000")
    several = [Claims(root, stale_after=0.0) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = [claim for claim in pool.map(lambda c: c.acquire("00000000"), several) if claim]
    held = [claim for claim in won if claim.is_held()]
    assert len(held) == 1


def test_what_is_no_claim_is_followed_after_a_while(root: Root) -> None:
    root.replace("claims/00000000.0", b"\x00 no claim")
    with Claims(root, stale_after=0.1) as claims:
        assert claims.acquire("00000000") is None
        _until(lambda: claims.acquire("00000000") is not None)


def test_the_taken_over_see_it(root: Root) -> None:
    with Claims(root) as claims:
        claim = claims.acquire("00000000")
        assert claim is not None
        _elsewhere(root, "00000000", attempt=1)
        assert not claim.is_held()


def test_owner_knows_the_living_and_the_dead() -> None:
    here = Owner.current()
    assert not here.is_gone
    assert Owner.from_token(here.token) == here
    assert Owner.from_dict(json.loads(json.dumps(here.as_dict()))) == here
    assert replace(here, started=here.started + 1).is_gone  # the pid was used again
    assert not replace(here, host="elsewhere", pid=1 << 30).is_gone  # that can't be known
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert replace(here, pid=process.pid, started=0).is_gone
    process.wait()
