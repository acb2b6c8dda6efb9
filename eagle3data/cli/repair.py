"""`eagle3data repair`: put right what can be, hide what is damaged, tell what is to be redone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, print_lines, print_table, progress, say

if TYPE_CHECKING:
    from eagle3data.validation.findings import Report
    from eagle3data.validation.repair import RepairReport
    from eagle3data.validation.repair_actions import Action

_SHOWN_PER_KIND = 8


def repair(
    url: o.Url,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be done, and change nothing.")
    ] = False,
    level: Annotated[
        str | None,
        typer.Option(
            help="How deep to look, as in validate: quick, full (default), semantic, all."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Target; semantic needs it for the final layer."),
    ] = None,
    revision: o.Revision = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Written by `validate --json`; used in place of looking again."
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            help="Watch other machines' claims, for a minute at most, to know whether they live."
        ),
    ] = True,
    json: o.Json = False,
) -> None:
    """Remove what belongs to nobody, hide damaged samples, rebuild the index.

    No committed byte is changed, and what living processes work on is left alone. `extract` then
    does again what is hidden or not committed. Exit code 0 nothing is wrong any more, 1 something
    is (with --dry-run: there is something to do), 2 could not run.

    Example: eagle3data repair ./states --dry-run
    """
    from eagle3data.validation.repair import repair as run

    saved = _read_report(report, level, model)
    done = run(
        url,
        level=level or "full",
        model=model,
        revision=revision,
        report=saved,
        dry_run=dry_run,
        wait=wait,
        tell=None if json else _tell,
        stage=_stage,
    )
    if json:
        print_json(done.as_dict())
    else:
        _show(done)
    if not done.ok:
        raise typer.Exit(1)


def _read_report(path: Path | None, level: str | None, model: str | None) -> Report | None:
    from eagle3data.schema.errors import InputError
    from eagle3data.validation.findings import Report

    if path is None:
        return None
    if level is not None or model is not None:
        raise InputError(
            "--report takes the place of looking again: leave out --level and --model."
        )
    return Report.from_json(path.read_bytes())


@contextmanager
def _stage(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    with progress(description, total, unit) as shown:
        yield shown.advance


def _tell(actions: Sequence[Action]) -> None:
    """A table of what is about to be done."""
    by_kind: dict[str, list[Action]] = {}
    for action in actions:
        by_kind.setdefault(action.kind, []).append(action)
    rows = []
    for kind, some in by_kind.items():
        rows += [[kind, action.place, action.why] for action in some[:_SHOWN_PER_KIND]]
        if len(some) > _SHOWN_PER_KIND:
            rows.append([kind, f"and {len(some) - _SHOWN_PER_KIND:,} more", "--json lists all"])
    columns = ("action", "place", "why")
    print_table(columns, rows, left=columns)


def _show(done: RepairReport) -> None:
    count = len(done.actions)
    if not count:
        say("Nothing to repair.")
    elif done.dry_run:
        say(f"{count:,} actions to do; nothing was changed.")
    else:
        say(f"{count:,} actions done.")
    if done.left_alone:
        out.print("\n[bold]left alone[/]")
    print_lines(done.left_alone, indent="  ")
    if done.beyond:
        out.print("\n[bold red]beyond repair[/]")
    print_lines(
        (f"{found.kind}: {found.detail} {found.advice or ''}" for found in done.beyond), indent="  "
    )
    if done.samples_to_redo and not done.is_planned:
        say(f"\n{done.samples_to_redo:,} samples have to be appended again (DatasetWriter).")
    elif done.samples_to_redo or done.shards_to_redo:
        say(
            f"\nRun `extract` (or `copy`, if that made the set) again: {done.samples_to_redo:,} "
            f"hidden samples and {done.shards_to_redo:,} shards that are not committed are to be "
            "done."
        )
