"""`eagle3data validate`: is every state whole, and the one of its token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import err, hidden, out, progress, size

if TYPE_CHECKING:
    from eagle3data.validation.findings import Finding, Report

_SHOWN_PER_KIND = 8
_COLOURS = {"clean": "green", "faulty": "red", "undetermined": "yellow"}
_EXIT_CODES = {"clean": 0, "faulty": 1, "undetermined": 3}


def validate(
    url: o.Url,
    level: Annotated[
        str,
        typer.Option(
            help="quick (index and sizes), full (every byte), semantic (do states fit their "
            "tokens) or all."
        ),
    ] = "full",
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Target; semantic needs it for the final layer."),
    ] = None,
    revision: o.Revision = None,
    json: o.Json = False,
) -> None:
    """Check a data set: structure, bytes and meaning.

    Exit code 0 clean, 1 faulty, 2 could not run, 3 undetermined.

    Example: eagle3data validate ./states --level all --model ./target
    """
    from eagle3data.validation.validate import validate as run

    report = run(url, level, model, revision, stage=_stage)
    if json:
        out.print(report.to_json(), markup=False, end="")
    else:
        _show(report)
    if report.verdict.value != "clean":
        raise typer.Exit(_EXIT_CODES[report.verdict.value])


@contextmanager
def _stage(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    with progress(description, total, unit) as shown:
        yield shown.advance


def _show(report: Report) -> None:
    colour = _COLOURS[report.verdict.value]
    checked = report.checked
    out.print(f"[bold {colour}]{report.verdict.value}[/]", end="  ")
    out.print(report.url, markup=False)
    out.print(
        f"level {report.level}: {checked.samples:,} samples, {checked.tokens:,} tokens, "
        f"{size(checked.bytes)} read{hidden(report.hidden)}",
        markup=False,
    )
    for kind, findings in _by_kind(report.findings).items():
        _show_kind(kind, findings)
    for heading, sentences in (
        ("undecided", report.undecided),
        ("what was seen", report.confidence),
    ):
        if sentences:
            out.print(f"\n[bold]{heading}[/]")
        for sentence in sentences:
            out.print(f"  {sentence}", markup=False)
    err.file.flush()


def _by_kind(findings: list[Finding]) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for finding in findings:
        grouped.setdefault(finding.kind, []).append(finding)
    return grouped


def _show_kind(kind: str, findings: list[Finding]) -> None:
    samples = len({finding.sample_id for finding in findings if finding.sample_id})
    severities = {finding.severity.value for finding in findings}
    colour = "red" if "error" in severities else "yellow"
    count = (
        f"{len(findings):,} findings in {samples:,} samples" if samples else f"{len(findings):,}"
    )
    out.print(f"\n[bold {colour}]{kind}[/]  {count} ({', '.join(sorted(severities))})")
    for finding in findings[:_SHOWN_PER_KIND]:
        out.print(f"  {_where(finding)}: {finding.detail}", markup=False)
    if len(findings) > _SHOWN_PER_KIND:
        out.print(f"  and {len(findings) - _SHOWN_PER_KIND:,} more: --json lists all", markup=False)
    for advice in dict.fromkeys(finding.advice for finding in findings if finding.advice):
        out.print(f"  -> {advice}", markup=False)


def _where(finding: Finding) -> str:
    places = []
    if finding.sample_id is not None:
        places.append(f"sample {finding.sample_id}")
    if finding.shard is not None:
        places.append(f"shard {finding.shard}")
    if finding.layer is not None:
        places.append(f"layer {finding.layer}")
    if finding.token_range is not None:
        places.append(f"tokens {finding.token_range[0]} to {finding.token_range[1]}")
    return ", ".join(places) or "the set"
