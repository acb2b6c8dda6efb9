"""`eagle3data export`: a trained draft in an engine's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3data.cli.console import out as console
from eagle3data.schema.errors import InputError

_FORMATS = ("vllm", "sglang")


def export(
    draft: Annotated[
        Path, typer.Argument(help="A run's folder (its best checkpoint) or one checkpoint.")
    ],
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(_FORMATS), help="Whose layout.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder.")],
) -> None:
    """Write a draft the way an inference engine loads it.

    Example: eagle3data export draft/ --format vllm --out draft-vllm/

    The formats differ in whose numbering the aux layers are written in, so a folder made for
    one engine drafts from wrong layers in the other.
    """
    from eagle3data.trainer.checkpoint import find_draft
    from eagle3data.trainer.export import ExportFormat, export_draft, load_exported
    from eagle3data.trainer.saved import read_draft

    if form not in _FORMATS:
        raise InputError(f"--format {form!r} is not one of {', '.join(_FORMATS)}.")
    source = find_draft(draft)
    export_draft(read_draft(source), out, ExportFormat(form))
    written = load_exported(out)
    console.print(
        f"{source} -> {out}: {len(written.parameters) + 2} tensors for {form}, draft vocabulary "
        f"{len(written.vocabulary.d2t):,}, aux layers {written.description.aux_layers} "
        "(canonical ids).",
        markup=False,
    )
