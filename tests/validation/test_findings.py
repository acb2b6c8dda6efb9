"""The verdict follows from findings and open questions; the JSON has the interface's keys."""

from __future__ import annotations

import json

from eagle3data.validation.findings import Finding, Level, Report, Severity, Verdict


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
