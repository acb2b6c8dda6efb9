"""`eagle3data card`: the README of a data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import err, out
from eagle3data.cli.validate import read_report


def card(
    url: o.Url,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `validate --json` printed, to be told."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put it into the set, in place of an older one.")
    ] = False,
) -> None:
    """What a set is, as a page for its bucket or its repository on a hub.

    `extract`, `import` and `copy` put one into every set; only a validation has to be told.

    Example: eagle3data card ./states --report report.json --write
    """
    from eagle3data.readers.card import NAME, render_card, write_card
    from eagle3data.readers.dataset import open_dataset

    dataset = open_dataset(url)
    told = None if report is None else json.loads(read_report(report, url).to_json())
    if not write:
        out.print(render_card(dataset, told), end="", markup=False, highlight=False, soft_wrap=True)
    elif write_card(dataset, told):
        out.print(f"{url}/{NAME} is this card.")
    else:
        err.print(f"{url}/{NAME} was written by somebody else and stays; remove it first.")
        raise typer.Exit(1)
