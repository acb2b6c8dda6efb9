"""`eagle3data view`: a local web page over a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out

_PORT = 8033


def view(
    url: o.Url,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Target: for tokens as text, and what its head says of a state."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Written by `validate --json`; its findings are shown."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of a training run, for its curves.")
    ] = None,
    evaluation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Written by `evaluate --out`.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond this machine visitors need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = _PORT,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
) -> None:
    """Show a data set in a browser: overview, shards, samples, progress, validation, training.

    It is only read, and nothing but it; pages ask nobody else for anything. Ctrl-C ends it.

    Example: eagle3data view ./states --model ./smollm2
    """
    from eagle3data.cli.validate import read_report
    from eagle3data.storage.layout import read_manifest
    from eagle3data.storage.root import Root
    from eagle3data.view.serving import serve
    from eagle3data.view.settings import Settings

    read_manifest(Root(url))  # what can't be looked at at all is said here, not in a page
    settings = Settings(
        url=url,
        model=model,
        revision=revision,
        trust_remote_code=trust_remote_code,
        report=None if report is None else read_report(report, url),
        run=run,
        evaluation=evaluation,
    )
    serve(settings, host, port, lambda address: out.print(f"Open {address}", markup=False))
