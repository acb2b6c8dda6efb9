"""`eagle3data export-dataset`: a data set in the layout that another project trains from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, progress
from eagle3data.schema.errors import InputError

_FORMATS = ("speculators", "specforge")


def export_dataset(
    url: o.Url,
    format_: Annotated[
        str, typer.Option("--format", metavar="|".join(_FORMATS), help="Whose layout.")
    ],
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to fill.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Target, whose final norm SpecForge wants applied."),
    ] = None,
    revision: o.Revision = None,
    json: o.Json = False,
) -> None:
    """Write a data set as speculators' or SpecForge's own trainer reads it.

    Running it again writes what is missing. One file a sample, no checksums: keep the data set.

    Example: eagle3data export-dataset ./states --format speculators --out ./hidden_states
    """
    from eagle3data.interop import write_specforge, write_speculators
    from eagle3data.readers.dataset import open_dataset

    if format_ not in _FORMATS:
        raise InputError(f"--format {format_}: expected {' or '.join(_FORMATS)}.")
    dataset = open_dataset(url)
    with progress("export", len(dataset), "samples") as shown:
        if format_ == "speculators":
            written = write_speculators.write(dataset, folder, progress=shown.advance)
        else:
            norm = None if model is None else _final_norm(model, revision)
            written = write_specforge.write(
                dataset, folder, final_norm=norm, progress=shown.advance
            )
    if json:
        print_json({"out": str(folder), "samples": len(dataset), "written": written})
    else:
        out.print(f"{folder}: {len(dataset):,} samples, {written:,} of them written now.")


def _final_norm(model: str, revision: str | None) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    import torch

    from eagle3data.schema.sample import as_float32
    from eagle3data.storage.model_weights import load_head
    from eagle3data.writers.casting import cast_states

    head = load_head(model, revision)

    def norm(states: npt.NDArray[Any]) -> npt.NDArray[Any]:
        normed = head.normed(torch.from_numpy(as_float32(states))).numpy()
        return cast_states(np.ascontiguousarray(normed), states.dtype)

    return norm
