"""`eagle3data stats`: lengths, masks and magnitudes, from the index alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, print_pairs, print_table, tell
from eagle3data.schema.errors import InputError
from eagle3data.schema.words import hidden, significant

if TYPE_CHECKING:
    from eagle3data.readers.dataset import Dataset


def stats(
    url: o.Url,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw lengths and norms: .png, .svg or .pdf."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --plot: what `validate --json` wrote, to draw what it measured too.",
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Lengths, mask share and per-layer magnitudes, without reading a state.

    Example: eagle3data stats ./states --plot states.png
    """
    from eagle3data.readers.dataset import open_dataset
    from eagle3data.readers.overview import statistics

    if report is not None and plot is None:
        raise InputError("--report is drawn, not printed: give --plot FILE too.")
    dataset = open_dataset(url)
    if plot is not None:
        _draw(dataset, plot, report)
    facts = statistics(dataset)
    if json:
        print_json(facts)
        return
    splits = ", ".join(f"{name} {count:,}" for name, count in facts["splits"].items())
    print_pairs(
        [
            ("samples", f"{facts['samples']:,} ({splits})" + hidden(facts["hidden"])),
            ("witness", f"{facts['with_witness']:,} samples have one"),
            ("length", _line(facts["length"], "{:,.0f}")),
            ("loss share", _line(facts["loss_share"], "{:.2f}")),
        ]
    )
    columns = ("layer", "rms median", "rms p90", "absmax", "min row rms", "zero rows", "nan", "inf")
    rows = [
        [
            str(row["layer"]),
            *(significant(row["rms"][name]) for name in ("median", "p90")),
            *(significant(row[name]) for name in ("absmax", "min_row_rms")),
            *(f"{row[name]:,}" for name in ("n_zero_rows", "n_nan", "n_inf")),
        ]
        for row in facts["layers"]
    ]
    out.print()
    print_table(columns, rows)


def _draw(dataset: Dataset, file: Path, report: Path | None) -> None:
    from eagle3data.cli.validate import read_report
    from eagle3data.evaluation.plot import check_plot
    from eagle3data.validation.plot import plot

    check_plot(file)
    plot(dataset, file, None if report is None else read_report(report, dataset.url))
    tell(f"drawn: {file}")


def _line(values: dict[str, Any], form: str) -> str:
    return "  ".join(f"{name} {form.format(value)}" for name, value in values.items())
