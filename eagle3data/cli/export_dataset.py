"""`eagle3data export-dataset`: a data set in the layout that another project trains from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, progress
from eagle3data.schema.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

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
    states: Annotated[
        bool,
        typer.Option(
            "--states/--no-states",
            help="--no-states: only speculators' rows of ids and masks; its trainer then reads "
            "the states from URL itself.",
        ),
    ] = True,
    json: o.Json = False,
) -> None:
    """Write a data set as speculators' or SpecForge's own trainer reads it.

    Running it again writes what is missing. One file a sample, no checksums: keep the data set.

    Example: eagle3data export-dataset ./states --format speculators --out ./hidden_states
    """
    from eagle3data.interop import write_specforge, write_speculators
    from eagle3data.interop.training_order import TrainingOrder
    from eagle3data.readers.dataset import open_dataset

    if format_ not in _FORMATS:
        raise InputError(f"--format {format_}: expected {' or '.join(_FORMATS)}.")
    if format_ == "specforge" and not states:
        raise InputError("SpecForge's files hold ids, masks and states together: no --no-states.")
    dataset = open_dataset(url)
    with progress("export", len(dataset), "samples") as shown:
        if format_ == "speculators":
            written = write_speculators.write(
                dataset, folder, states=states, progress=shown.advance
            )
        else:
            norm = None if model is None else final_norm(model, revision)
            written = write_specforge.write(
                dataset, folder, final_norm=norm, progress=shown.advance
            )
    ratio = TrainingOrder(dataset).train_ratio if format_ == "speculators" else None
    if json:
        found = {"out": str(folder), "samples": len(dataset), "written": written}
        print_json({**found, "train_data_ratio": ratio})
        return
    if states:
        out.print(f"{folder}: {len(dataset):,} samples, {written:,} of them written now.")
    else:
        out.print(f"{folder}: {len(dataset):,} rows of ids and masks; the states stay in {url}.")
    if ratio is not None:
        out.print(f"speculators holds out what is held out here with --train-data-ratio {ratio}")


def final_norm(
    model: str, revision: str | None = None
) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """The target's final norm, of stored states `[T, H]`: the same dtype and shape.

    Raises:
        InputError: no such model, or none whose norm is found.
    """
    import numpy as np
    import torch

    from eagle3data.schema.sample import as_float32
    from eagle3data.storage.model_weights import load_head
    from eagle3data.writers.casting import cast_states

    head = load_head(model, revision)

    def norm(states: npt.NDArray[Any]) -> npt.NDArray[Any]:
        normed = head.normed(torch.from_numpy(as_float32(states))).numpy()
        return cast_states(np.ascontiguousarray(normed), states.dtype)

    return norm
