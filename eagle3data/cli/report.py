"""A report of `validate` for people at a terminal: the verdict, then kinds, then places."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from eagle3data.cli.console import out, visible
from eagle3data.schema.words import hidden, size
from eagle3data.validation.kinds import meaning_of
from eagle3data.validation.summary import (
    advice,
    by_kind,
    extent,
    in_a_sentence,
    place,
    severity,
    sure,
)

if TYPE_CHECKING:
    from eagle3data.validation.findings import Finding, Report

_SHOWN_PER_KIND = 4
_COLOURS = {"clean": "green", "faulty": "red", "undetermined": "yellow"}
_SEVERITIES = {"error": "red", "warning": "yellow"}
_NARROWEST = 40


def show_report(report: Report) -> None:
    """Print it; on a terminal as wide as that is."""
    checked = report.checked
    out.print(f"[bold {_COLOURS[report.verdict.value]}]{report.verdict.value}[/]", end="  ")
    out.print(report.url, markup=False)
    _say(in_a_sentence(report))
    _say(
        f"level {report.level.value}: {checked.samples:,} samples, {checked.tokens:,} tokens, "
        f"{size(checked.bytes)} read{hidden(report.hidden)}"
    )
    for kind, findings in by_kind(report.findings).items():
        _show_kind(kind, findings)
    _show_sentences("what stays open", report.undecided)
    _show_sentences("what was seen", report.confidence)
    _show_sentences("what to do", _to_do(by_kind(report.findings)))


def _show_kind(kind: str, findings: list[Finding]) -> None:
    worst = severity(findings).value
    out.print(f"\n[bold {_SEVERITIES[worst]}]{kind}[/] ({worst})", end="  ")
    out.print(", ".join(extent(findings)), markup=False)
    meaning = meaning_of(kind)
    _say(" ".join([*([meaning] if meaning else []), f"How sure: {sure(findings)}."]))
    for finding in findings[:_SHOWN_PER_KIND]:
        sample = [f"sample {finding.sample_id}"] if finding.sample_id is not None else []
        where = ", ".join([*sample, *place(finding)]) or "the set"
        _say(f"- {where}: {finding.detail}", indent=4)
    if len(findings) > _SHOWN_PER_KIND:
        _say(f"- and {len(findings) - _SHOWN_PER_KIND:,} more: --json lists all", indent=4)


def _to_do(grouped: dict[str, list[Finding]]) -> list[str]:
    """Each advice once, with the kinds that it is for."""
    kinds: dict[str, list[str]] = {}
    for kind, findings in grouped.items():
        for sentence in advice(findings):
            kinds.setdefault(sentence, []).append(kind)
    return [f"{sentence} ({', '.join(named)})" for sentence, named in kinds.items()]


def _show_sentences(heading: str, sentences: list[str]) -> None:
    if sentences:
        out.print(f"\n[bold]{heading}[/]")
    for sentence in sentences:
        _say(f"- {sentence}", indent=4)


def _say(text: str, indent: int = 2) -> None:
    """A paragraph two columns in, its further lines `indent` in; unbroken where nobody looks.

    Sample ids come from anywhere: what would steer the terminal is shown instead.
    """
    text = visible(text)
    if not out.is_terminal:
        out.print(f"  {text}", markup=False)
        return
    width = max(out.width, _NARROWEST)
    wrapped = textwrap.fill(
        text,
        width,
        initial_indent="  ",
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )
    out.print(wrapped, markup=False)
