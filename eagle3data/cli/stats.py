"""`eagle3data stats`: lengths, masks and magnitudes, from the index alone."""

from __future__ import annotations

from typing import Any

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, print_pairs
from eagle3data.schema.words import hidden


def stats(url: o.Url, json: o.Json = False) -> None:
    """Lengths, mask share and per-layer magnitudes, without reading a state.

    Example: eagle3data stats ./states
    """
    from rich.table import Table

    from eagle3data.readers.dataset import open_dataset
    from eagle3data.readers.overview import statistics

    facts = statistics(open_dataset(url))
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
    table = Table(box=None, header_style="bold")
    columns = ("layer", "rms median", "rms p90", "absmax", "min row rms", "zero rows", "nan", "inf")
    for name in columns:
        table.add_column(name, justify="right")
    for row in facts["layers"]:
        table.add_row(
            str(row["layer"]),
            f"{row['rms']['median']:.3g}",
            f"{row['rms']['p90']:.3g}",
            f"{row['absmax']:,.5g}",
            f"{row['min_row_rms']:.3g}",
            *(f"{row[name]:,}" for name in ("n_zero_rows", "n_nan", "n_inf")),
        )
    out.print(table)


def _line(values: dict[str, Any], form: str) -> str:
    return "  ".join(f"{name} {form.format(value)}" for name, value in values.items())
