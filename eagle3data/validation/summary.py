"""A report in few words: what every way of showing it says alike."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3data.validation.findings import Finding, Report, Severity, Verdict


def in_a_sentence(report: Report) -> str:
    """What the verdict means for this report."""
    warnings = sum(finding.severity is Severity.WARNING for finding in report.findings)
    also = f" {count_of(warnings, 'warning')} besides." if warnings else ""
    if report.verdict is Verdict.CLEAN:
        return f"Nothing wrong was found, and no question of this level stayed open.{also}"
    if report.verdict is Verdict.UNDETERMINED:
        questions = count_of(len(report.undecided), "question")
        return f"Nothing wrong was found, but {questions} can't be answered from these data.{also}"
    errors = report.errors
    samples = {finding.sample_id for finding in errors if finding.sample_id is not None}
    kinds = {finding.kind for finding in errors}
    where = f" in {count_of(len(samples), 'sample')}" if samples else ""
    return f"{count_of(len(errors), 'error')} of {count_of(len(kinds), 'kind')}{where}.{also}"


def by_kind(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Findings grouped by kind, kinds with errors first, then in the order found."""
    grouped: dict[str, list[Finding]] = {}
    for finding in findings:
        grouped.setdefault(finding.kind, []).append(finding)
    return dict(sorted(grouped.items(), key=lambda one: severity(one[1]) is not Severity.ERROR))


def severity(findings: Sequence[Finding]) -> Severity:
    """The worst of some."""
    errors = any(finding.severity is Severity.ERROR for finding in findings)
    return Severity.ERROR if errors else Severity.WARNING


def extent(findings: Sequence[Finding]) -> list[str]:
    """How many findings, samples, shards and layers these are."""
    samples = {finding.sample_id for finding in findings if finding.sample_id is not None}
    shards = sorted({finding.shard for finding in findings if finding.shard is not None})
    layers = sorted({finding.layer for finding in findings if finding.layer is not None})
    parts = [count_of(len(findings), "finding")]
    parts += [count_of(len(samples), "sample")] if samples else []
    if shards:
        parts.append(f"shard {shards[0]}" if len(shards) == 1 else count_of(len(shards), "shard"))
    if layers:
        parts.append(f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}")
    return parts


def place(finding: Finding) -> list[str]:
    """Shard, layer and tokens of a finding, as far as it has them; the last token included."""
    places = []
    if finding.shard is not None:
        places.append(f"shard {finding.shard}")
    if finding.layer is not None:
        places.append(f"layer {finding.layer}")
    if finding.token_range is not None:
        places.append(f"tokens {finding.token_range[0]:,} to {finding.token_range[1] - 1:,}")
    return places


def sure(findings: Sequence[Finding]) -> str:
    """How sure these are."""
    return "; ".join(dict.fromkeys(finding.sure for finding in findings))


def advice(findings: Sequence[Finding]) -> list[str]:
    """What to do about these, each once."""
    return list(dict.fromkeys(finding.advice for finding in findings if finding.advice))


def count_of(number: int, noun: str) -> str:
    """`1 sample`, `2 samples`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
