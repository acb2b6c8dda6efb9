"""Validation: the very report of `validate --json`, run beside the server, stopped and shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

from starlette.testclient import TestClient

from eagle3data import validate
from eagle3data.storage import layout
from eagle3data.validation.findings import Finding, Level, Report
from tests.support import random_samples, small_manifest, write_set
from tests.view.conftest import Client, Open
from tests.view.serving import facts
from tests.view.test_overview import HOSTILE

OWN = {"origin": "http://127.0.0.1:8033"}


def until_done(visitor: TestClient) -> str:
    """The part of the page once nothing runs any more."""
    deadline = time.monotonic() + 120
    while True:
        part = visitor.get("/validation/part").text
        if "data-again-in" not in part:
            return part
        assert time.monotonic() < deadline, part
        time.sleep(0.2)


def test_a_broken_set_is_judged_as_by_the_command(copied: Path, client: Client) -> None:
    path = copied / layout.shard_object(layout.states_array(15), 1)
    data = bytearray(path.read_bytes())
    data[200] ^= 4
    path.unlink()
    path.write_bytes(data)
    visitor = client(str(copied))
    begun = visitor.post("/validation/start?level=full", headers=OWN)
    assert begun.status_code == 200
    assert "level full runs" in begun.text
    part = until_done(visitor)
    known = validate(str(copied), "full")
    assert known.findings
    shown = facts(part)
    assert shown["findings"] == str(len(known.findings))
    assert shown["checked"] == str(known.checked.samples)
    for finding in known.findings:
        assert f"<code>{finding.kind}</code>" in part
    assert "faulty" in visitor.get("/").text
    assert 's-unreadable" href="/samples?shard=1"' in visitor.get("/shards?colour=findings").text


def test_what_can_not_be_judged_and_what_is_stopped(tmp_path: Path, client: Client) -> None:
    manifest = small_manifest()
    url = write_set(tmp_path / "set", random_samples(3, manifest), manifest)
    visitor = client(url, model=str(tmp_path / "no-model"))
    visitor.post("/validation/start?level=quick", headers=OWN)
    part = until_done(visitor)
    assert "There is no new report" in part
    assert "no-model" in part
    visitor.post("/validation/start?level=quick", headers=OWN)
    visitor.post("/validation/stop", headers=OWN)
    assert "It was stopped." in until_done(visitor)


def test_only_our_own_page_can_start_one(states: str, client: Client) -> None:
    visitor = client(states)
    assert visitor.post("/validation/start?level=quick").status_code == 403
    assert visitor.get("/validation/start?level=quick").status_code == 405
    odd = visitor.post("/validation/start?level=../full", headers=OWN)
    assert (odd.status_code, "expected one of" in odd.text) == (404, True)
    assert "Nothing was validated yet" in visitor.get("/validation").text


def test_a_report_of_before_is_shown(states: str, opened: Open) -> None:
    report = Report(url=states, level=Level.FULL)
    report.add([Finding(kind="nonfinite", detail=HOSTILE, sample_id=HOSTILE, shard=0)])
    again = Report.from_json(json.dumps(json.loads(report.to_json())))
    visit = opened(states, "/validation", width=390, report=again)
    assert visit.text(".report .said") == "✗ Faulty"
    assert HOSTILE in visit.text(".report article")
    assert visit.count("main script, main img") == 0
    assert visit.fits()
    visit.click("button.level")
    visit.wait_for(".report .said:has-text('Clean')")
    assert visit.fact("findings") == "0"
