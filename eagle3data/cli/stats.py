"""`eagle3data stats`: lengths, masks and magnitudes, from the index alone."""

from __future__ import annotations

from typing import Any

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, print_pairs, print_table
from eagle3data.schema.words import hidden, significant


def stats(url: o.Url, json: o.Json = False) -> None:
    """Lengths, mask share and per-layer magnitudes, without reading a state.

    Example: eagle3data stats ./states
    """
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


def _line(values: dict[str, Any], form: str) -> str:
    return "  ".join(f"{name} {form.format(value)}" for name, value in values.items())
