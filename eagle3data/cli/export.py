"""`eagle3data export`: a trained draft, or a published one, in an engine's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out as console
from eagle3data.schema.errors import InputError

_FORMATS = ("vllm", "sglang", "speculators")
_NUMBERINGS = ("vllm", "sglang")


def export(
    draft: Annotated[
        str,
        typer.Argument(
            metavar="DRAFT",
            help="A run's folder (its best checkpoint), one checkpoint, or a published draft.",
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(_FORMATS),
            help="Whose layout.",
            autocompletion=o.one_of(*_FORMATS),
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The target: of a draft published elsewhere, or where it lies now (speculators).",
        ),
    ] = None,
    numbering: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(_NUMBERINGS),
            help="Whose layer ids a draft published elsewhere holds; else as its layout means.",
        ),
    ] = None,
    revision: o.Revision = None,
) -> None:
    """Write a draft the way an inference engine loads it.

    Example: eagle3data export draft/ --format vllm --out draft-vllm/

    vllm and sglang differ in whose numbering the aux layers are written in, so a folder made for
    one engine drafts from wrong layers in the other. speculators' layout, which vLLM serves by the
    folder's name alone, holds the target's embeddings too.
    """
    from dataclasses import replace

    from eagle3data.schema.layers import Numbering
    from eagle3data.schema.target import describe_target
    from eagle3data.storage.model_weights import load_embeddings
    from eagle3data.trainer.export import export_draft
    from eagle3data.trainer.layouts import ExportFormat
    from eagle3data.trainer.published import open_draft, read_published

    if form not in _FORMATS:
        raise InputError(f"--format {form!r} is not one of {', '.join(_FORMATS)}.")
    if numbering is not None and numbering not in _NUMBERINGS:
        raise InputError(f"--numbering {numbering!r} is not one of {', '.join(_NUMBERINGS)}.")
    target = describe_target(model, revision)[0] if model is not None else None
    source = open_draft(
        draft, target=target, numbering=Numbering(numbering) if numbering else None
    ).draft
    if model is not None:  # by the name that it has now, which the layout of speculators holds
        named = source.description.model_copy(update={"target": model})
        source = replace(source, description=named)
    embeddings = None
    if form == ExportFormat.SPECULATORS:
        embeddings = load_embeddings(source.description.target, revision)
    export_draft(source, out, ExportFormat(form), embeddings=embeddings)
    written = read_published(out).draft
    console.print(
        f"{draft} -> {out}: {len(written.parameters) + 2} tensors for {form}, draft vocabulary "
        f"{len(written.vocabulary.d2t):,}, aux layers {written.description.aux_layers} "
        "(canonical ids).",
        markup=False,
    )
