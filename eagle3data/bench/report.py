"""What a benchmark found, as data, as rich tables and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from eagle3data.bench.machine import Machine
from eagle3data.bench.peers.base import Peer
from eagle3data.bench.turns import Timing

NOT_INSTALLED = "not installed"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case.

    Attributes:
        case: its name.
        checks: whether it compares checksums; None where there is nothing to compare.
        speed: median, in bytes a second; None where the case could not run.
        slowest, fastest: of the rounds, in bytes a second.
        ratio: its speed as a share of the section's base.
        from_device: share of the bytes that the device delivered; None where not counted.
        note: versions, or why it could not run.
    """

    case: str
    checks: bool | None = None
    speed: float | None = None
    slowest: float | None = None
    fastest: float | None = None
    ratio: float | None = None
    from_device: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Cases that took turns.

    Attributes:
        title: what was done.
        base: what the ratios are shares of.
        rows: in the order of the cases.
    """

    title: str
    base: str
    rows: list[Row]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Anything else, as text: a title, column names, rows of cells."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    facts: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that one run of a benchmark found.

    Attributes:
        what: `reader`, `writer` or `loader`.
        machine: where.
        data: one sentence about the samples.
        nbytes: bytes of all states.
        rounds: how often each case ran.
        sections: tables of speeds.
        tables: other tables.
        notes: what the reader of the tables has to know.
    """

    what: str
    machine: Machine
    data: str
    nbytes: int
    rounds: int
    sections: list[Section]
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON takes it."""
        return asdict(self)


def section(
    title: str,
    base: str,
    timings: Sequence[Timing],
    peers: Sequence[Peer],
    *,
    writing: bool = False,
) -> Section:
    """The rows of timings, then one for each peer that is not installed."""
    named = {timing.case.name: timing for timing in timings}
    notes = {_title(peer, writing): _versions(peer) for peer in peers}
    rows = [row(timing, named, notes.get(timing.case.name, "")) for timing in timings]
    rows += [
        Row(case=_title(peer, writing), checks=peer.checks, note=NOT_INSTALLED)
        for peer in peers
        if not peer.available()
    ]
    return Section(title=title, base=base, rows=rows)


def _title(peer: Peer, writing: bool) -> str:
    return peer.writing if writing else peer.reading


def _versions(peer: Peer) -> str:
    return ", ".join(f"{name} {version}" for name, version in peer.versions().items())


def row(timing: Timing, named: Mapping[str, Timing], note: str = "") -> Row:
    """The row of a case; `named` has the timing of its base."""
    nbytes, base = timing.case.nbytes, named.get(timing.case.base or "")
    return Row(
        case=timing.case.name,
        checks=timing.case.checks,
        speed=timing.speed,
        slowest=nbytes / max(timing.seconds),
        fastest=nbytes / min(timing.seconds),
        ratio=timing.speed / base.speed if base else None,
        from_device=timing.from_device,
        note=note,
    )


def as_tables(report: Report) -> list[Table]:
    """Every section and table as text."""
    return [_section_table(part) for part in report.sections] + report.tables


def _section_table(part: Section) -> Table:
    counted = any(row.from_device is not None for row in part.rows)
    columns = ["case", "checks", "GB/s", "slowest to fastest", "ratio"]
    columns += ["from the device"] * counted
    rows = []
    for row in part.rows:
        cells = [row.case, _yes_no(row.checks), *_speeds(row)]
        cells += [_share(row.from_device)] * counted
        rows.append(cells)
    title = f"{part.title} (ratio to {part.base})"
    return Table(title=title, columns=columns, rows=rows, facts=[])


def _speeds(row: Row) -> list[str]:
    if row.speed is None or row.slowest is None or row.fastest is None:
        return [row.note, "", ""]
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return [f"{row.speed / 1e9:.2f}", f"{row.slowest / 1e9:.2f} to {row.fastest / 1e9:.2f}", ratio]


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def facts_lines(report: Report) -> list[str]:
    """Machine, data and notes, a line each."""
    rounds = (
        f"median of {report.rounds} rounds, cases taking turns" if report.rounds > 1 else "once"
    )
    return [f"Machine: {report.machine.line()}", f"Data: {report.data}; {rounds}", *report.notes]


def markdown(report: Report) -> str:
    """The whole report, for a page of documentation."""
    lines = [f"# `eagle3data bench {report.what}`", ""]
    for line in facts_lines(report):
        lines += [line, ""]
    for table in as_tables(report):
        lines += [f"## {table.title}", "", _line(table.columns), "|---" * len(table.columns) + "|"]
        lines += [*(_line(row) for row in table.rows), ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
