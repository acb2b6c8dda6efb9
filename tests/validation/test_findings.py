"""The verdict follows from findings and open questions; the JSON has the interface's keys."""

from __future__ import annotations

import json

import pytest

from eagle3data.schema.errors import InputError
from eagle3data.validation.findings import Finding, Level, Report, Severity, Verdict
from eagle3data.validation.measured import (
    ByShift,
    LayerMeasured,
    Measured,
    RmsByPosition,
    Witnesses,
)
from eagle3data.validation.overview import Overview


def report(*findings: Finding, undecided: list[str] | None = None) -> Report:
    made = Report(url="memory://x", level=Level.FULL, undecided=undecided or [])
    made.add(findings)
    return made


def test_verdicts() -> None:
    error = Finding(kind="shifted", detail="x")
    warning = Finding(kind="mask_empty", detail="x", severity=Severity.WARNING)
    assert report().verdict is Verdict.CLEAN
    assert report(warning).ok
    assert report(warning, undecided=["?"]).verdict is Verdict.UNDETERMINED
    assert report(error, undecided=["?"]).verdict is Verdict.FAULTY


def test_the_same_fault_of_the_same_place_is_said_once() -> None:
    first = Finding(kind="all_zero", detail="by the index", sample_id="a", layer=2, shard=0)
    again = Finding(kind="all_zero", detail="by the bytes", sample_id="a", layer=2)
    other = Finding(kind="all_zero", detail="by the bytes", sample_id="a", layer=3)
    assert [finding.detail for finding in report(first, again, other).findings] == [
        "by the index",
        "by the bytes",
    ]


def test_a_later_check_says_which_tokens() -> None:
    made = report(Finding(kind="all_zero", detail="by the index", sample_id="a", layer=2, shard=0))
    tokens = Finding(kind="all_zero", detail="by rows", sample_id="a", layer=2, token_range=(3, 9))
    made.add([tokens, tokens])
    made.add([Finding(kind="all_zero", detail="again", sample_id="a", layer=2)])
    assert [(f.detail, f.token_range) for f in made.findings] == [("by the index", (3, 9))]
    other = Finding(kind="all_zero", detail="x", sample_id="a", layer=2, token_range=(20, 22))
    made.add([other])
    assert len(made.findings) == 2


def test_json() -> None:
    finding = Finding(kind="shifted", detail="x", sample_id="a", token_range=(3, 9))
    value = json.loads(report(finding).to_json())
    assert value["verdict"] == "faulty"
    assert value["ok"] is False
    assert value["level"] == "full"
    assert value["checked"] == {"samples": 0, "tokens": 0, "bytes": 0}
    assert value["findings"] == [
        {
            "kind": "shifted",
            "severity": "error",
            "sample_id": "a",
            "shard": None,
            "layer": None,
            "detail": "x",
            "token_range": [3, 9],
            "chance": 0.0,
            "sure": "proven",
        }
    ]


def test_how_sure_is_said_by_whoever_knows() -> None:
    made = Report(url="memory://x", level=Level.ALL)
    made.add([Finding(kind="chunk_corrupt", detail="x")])
    made.add(
        [Finding(kind="shifted", detail="x"), Finding(kind="all_zero", detail="x", chance=0.0)],
        chance=1e-4,
    )
    again = Report.from_json(made.to_json())
    assert again == made
    assert {finding.kind: finding.chance for finding in again.findings} == {
        "chunk_corrupt": 0.0,
        "shifted": 1e-4,
        "all_zero": 0.0,
    }
    assert {finding.sure for finding in again.findings if finding.kind != "shifted"} == {"proven"}
    assert "10,000" in next(f.sure for f in again.findings if f.kind == "shifted")


def test_overview_and_measured_come_back_from_json() -> None:
    made = report(Finding(kind="shifted", detail="x", sample_id="a"))
    made.overview = Overview(
        target="m",
        layers=[2, 30],
        final_layer=30,
        dtype="float16",
        codec="none",
        shards=3,
        shard_tokens=1024,
        end=2000,
        length_edges=[0, 8, 16],
        length_counts=[3, 4],
        places={"a": [1024, 1100]},
    )
    by_shift = ByShift(shifts=[-1, 0, 1], shares=[0.25, 1.0, 0.125], best=0, tested=100)
    rms = RmsByPosition(start=[0, 1], stop=[1, 3], low=[1.0, 2.0], median=[1.5, 2.5], high=[2, 3])
    layer = LayerMeasured(
        layer=2, identity=by_shift, identity_chance=0.25, next_token=None, rms=rms
    )
    made.measured = Measured(layers=[layer], witness=Witnesses(samples=3, agreeing=2), probed=5)
    again = Report.from_json(made.to_json())
    assert again == made


def test_a_report_of_a_version_without_them_can_be_read() -> None:
    value = json.loads(report(Finding(kind="shifted", detail="x")).to_json())
    del value["overview"], value["measured"]
    for name in ("chance", "sure"):
        del value["findings"][0][name]
    assert Report.from_json(json.dumps(value)).findings[0].sure == "not said"


def test_json_that_is_no_report() -> None:
    value = json.loads(report(Finding(kind="shifted", detail="x")).to_json())
    for wrong in ({"measured": {"layers": 3}}, {"overview": {"target": "m"}}, {"level": "deep"}):
        with pytest.raises(InputError, match="no report"):
            Report.from_json(json.dumps({**value, **wrong}))
