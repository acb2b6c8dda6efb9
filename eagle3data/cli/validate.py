"""`eagle3data validate`: is every state whole, and the one of its token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, progress, tell
from eagle3data.schema.errors import InputError

if TYPE_CHECKING:
    from eagle3data.extractor.recompute import Recompute
    from eagle3data.validation.findings import Report

_READ_BYTES = ("full", "all")
_EXIT_CODES = {"clean": 0, "faulty": 1, "undetermined": 3}


def validate(
    url: o.Url,
    level: Annotated[
        str,
        typer.Option(
            help="quick (index and sizes), full (every byte), semantic (do states fit their "
            "tokens) or all.",
            autocompletion=o.one_of("quick", "full", "semantic", "all"),
        ),
    ] = "full",
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Target; semantic needs it for the final layer."),
    ] = None,
    recompute: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Run MODEL itself on N samples and compare every layer."
        ),
    ] = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where full notes what it has read, to go on after an interruption; by default "
            "a file in the cache folder. It is gone once the check is done.",
        ),
    ] = None,
    afresh: Annotated[
        bool, typer.Option("--afresh", help="Read everything, whatever an interrupted check read.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Written by `validate --json`; shown in place of looking again."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report as one self-contained page too."),
    ] = None,
    json: o.Json = False,
) -> None:
    """Check a data set: structure, bytes and meaning.

    Exit code 0 clean, 1 faulty, 2 could not run, 3 undetermined.

    Example: eagle3data validate ./states --level all --model ./target
    """
    from eagle3data.validation.validate import validate as run

    if html is not None:
        _require_writable(html)
    try:
        found = (
            read_report(report, url)
            if report is not None
            else run(
                url,
                level,
                model,
                revision,
                trust_remote_code=trust_remote_code,
                recompute=_recompute(recompute),
                stage=_stage,
                resume=resume or _noted_in(url, level),
                afresh=afresh,
            )
        )
    except KeyboardInterrupt:
        if level in _READ_BYTES:
            tell("What was read is noted; the same command goes on from there.")
        raise
    _tell(found, html, json=json)
    if not found.ok:
        raise typer.Exit(_EXIT_CODES[found.verdict.value])


def _tell(report: Report, html: Path | None, *, json: bool) -> None:
    """The report in every way that was asked for."""
    if html is not None:
        from eagle3data.validation.html.page import report_page

        html.write_text(report_page(report), encoding="utf-8")
        tell(f"The page is {html}.")
    if json:
        out.print(report.to_json(), markup=False, end="")
    else:
        from eagle3data.cli.report import show_report

        show_report(report)


def read_report(file: Path, url: str) -> Report:
    """A report that `--json` wrote, of this data set.

    Raises:
        InputError: it is none, or of another.
    """
    from eagle3data.validation.findings import Report

    report = Report.from_json(file.read_bytes())
    if report.url != url:
        raise InputError(f"{file} is a report of {report.url}, not of {url}.")
    return report


def _recompute(samples: int | None) -> Recompute | None:
    if samples is None:
        return None
    try:
        from eagle3data.extractor.recompute import Recompute
    except ModuleNotFoundError as error:
        raise InputError(
            f"--recompute needs {error.name}: pip install 'eagle3data[transformers]'."
        ) from None
    return Recompute(samples)


def _require_writable(file: Path) -> None:
    """Said before a check of hours, not after it."""
    try:
        existed = file.exists()
        with file.open("a"):
            pass
        if not existed:
            file.unlink()
    except OSError as error:
        raise InputError(f"--html {file} can't be written: {error.strerror or error}.") from None


def _noted_in(url: str, level: str) -> Path | None:
    """The cache's file for this set; None, with a word about it, where it can't be used."""
    from eagle3data.storage.root import Root
    from eagle3data.validation.progress_file import default_file, why_unusable

    if level not in _READ_BYTES:
        return None
    file = default_file(Root(url))
    reason = why_unusable(file)
    if reason is None:
        return file
    tell(f"This check can't be continued if it is interrupted: {reason}")
    return None


@contextmanager
def _stage(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    with progress(description, total, unit) as shown:
        yield shown.advance
