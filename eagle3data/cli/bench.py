"""`eagle3data bench`: reading, writing and streaming against the machine's limit and the peers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, tell
from eagle3data.schema.errors import InputError

if TYPE_CHECKING:
    from eagle3data.bench.report import Table

_WIDTH = 140


class What(StrEnum):
    """What is measured."""

    READER = "reader"
    WRITER = "writer"
    LOADER = "loader"


def bench(
    what: Annotated[What, typer.Argument(help="What to measure.")],
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]", help="reader: the set whose states the codec table is about."
        ),
    ] = None,
    peers: Annotated[
        str, typer.Option(help="Who else: names separated by commas, all, or none.")
    ] = "all",
    nbytes: Annotated[
        int, typer.Option("--bytes", min=1_000_000, help="Bytes of the samples.")
    ] = 2_000_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each case runs.")] = 5,
    folder: Annotated[
        Path, typer.Option(help="Where the samples are written; they are gone afterwards.")
    ] = Path(),
    cold: Annotated[
        bool, typer.Option("--cold", help="reader, loader: with an empty page cache, too.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the speeds there.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tables there as Markdown.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Measure reading, writing or streaming of samples, as ratios to baselines in the same run.

    Samples are [T, 4, 7168] of 16 bits, read in random order into one reused buffer, written and
    made durable, or streamed as batches of 8,192 tokens by our loader and by those of others.
    What each of them delivers is compared with what was written before it is timed.

    Example: eagle3data bench reader ./states --cold --plot reader.png
    """
    from eagle3data.bench import report as reports
    from eagle3data.bench.loaders import chosen_loaders
    from eagle3data.bench.peers import chosen
    from eagle3data.bench.run import bench_loader, bench_reader, bench_writer

    if what is What.WRITER and (url or cold):
        raise InputError("`bench writer` takes no URL and no --cold; it writes to --folder.")
    if what is What.LOADER and url:
        raise InputError("`bench loader` takes no URL; it writes its samples to --folder.")
    if what is What.LOADER:
        report = bench_loader(
            folder=folder,
            peers=chosen_loaders(peers),
            nbytes=nbytes,
            rounds=rounds,
            cold=cold,
            tell=_tell,
        )
    elif what is What.READER:
        report = bench_reader(
            folder=folder,
            peers=chosen(peers),
            nbytes=nbytes,
            rounds=rounds,
            cold=cold,
            states=url,
            tell=_tell,
        )
    else:
        report = bench_writer(
            folder=folder, peers=chosen(peers), nbytes=nbytes, rounds=rounds, tell=_tell
        )
    if plot is not None:
        from eagle3data.bench.plot import plot as draw

        draw(report, plot)
    if markdown is not None:
        markdown.write_text(reports.markdown(report))
    if json:
        print_json(report.as_dict())
    else:
        _show(reports.facts_lines(report), reports.as_tables(report))


def _tell(text: str) -> None:
    tell(text)


def _show(facts: list[str], tables: list[Table]) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    # A file or a pipe has no width of its own, and a case's name should stay on one line.
    wide = Console(width=max(out.width, _WIDTH), highlight=False)
    for line in facts:
        out.print(line, markup=False)
    for table in tables:
        out.print()
        out.print(table.title, style="bold", markup=False)
        shown = RichTable(box=None, header_style="bold")
        for number, name in enumerate(table.columns):
            shown.add_column(name, justify="right" if number else "left")
        for row in table.rows:
            shown.add_row(*row)
        wide.print(shown)
