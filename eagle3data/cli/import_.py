"""`eagle3data import`: hidden states in other projects' layouts, taken in."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import print_json, print_pairs, progress, tell
from eagle3data.cli.extraction import ShownExtraction, how_to_continue
from eagle3data.cli.validate import validate
from eagle3data.schema.layers import NormState

if TYPE_CHECKING:
    from eagle3data.extractor.importing import ImportReport


def import_(
    source: Annotated[str, typer.Argument(metavar="SRC", help="File or folder.")],
    model: o.Model,
    url: o.Out,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="auto looks; or speculators, specforge, deepspec, model-optimizer, eagle or "
            "torchspec.",
        ),
    ] = "auto",
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="Layers of the stored states, in their order, where SRC doesn't say.",
        ),
    ] = None,
    numbering: o.NumberingOption = None,
    norm: Annotated[
        NormState | None,
        typer.Option(help="Final states before (pre) or after (post) the final norm."),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Data set with ids and masks, where not beside SRC."),
    ] = None,
    all_tokens: Annotated[
        bool, typer.Option("--all-tokens", help="No mask in SRC: train on every token.")
    ] = False,
    pad_token_id: Annotated[
        int | None,
        typer.Option(metavar="ID", help="Of stored padding; the tokenizer's by default."),
    ] = None,
    eval_fraction: Annotated[
        float, typer.Option(help="Share of the samples that goes to the split `eval`.")
    ] = 0.05,
    dtype: o.Dtype = "float16",
    codec: o.CodecOption = "none",
    shard_tokens: o.ShardTokens = None,
    ray: Annotated[bool, typer.Option("--ray", help="Read on the nodes of a Ray cluster.")] = False,
    replicas: Annotated[
        int | None, typer.Option(metavar="N", help="Readers on the cluster.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--validate/--no-validate", help="Validate what was taken in.")
    ] = True,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = False,
) -> None:
    """Take in hidden states that another project stored; running it again continues.

    What SRC doesn't say of itself is asked for, never guessed. A sample that can't be read goes to
    the ledger with the reason. Nothing in SRC is executed, or changed.

    Example: eagle3data import hidden_states/ --model ./target --layers 2,16,29,32 --out ./states
    """
    from eagle3data.extractor.engines.choice import EngineOptions
    from eagle3data.extractor.importing import ImportOptions, import_states
    from eagle3data.extractor.on_ray import extract_on_ray
    from eagle3data.extractor.run import ExtractOptions, ExtractReport
    from eagle3data.extractor.run import extract as extract_here
    from eagle3data.interop.source import SourceOptions

    chosen = ImportOptions(
        source=SourceOptions(
            path=Path(source), format=format_, dataset=dataset, pad_token_id=pad_token_id
        ),
        layers=layers,
        numbering=numbering,
        norm=norm,
        all_tokens=all_tokens,
        eval_fraction=eval_fraction,
        extraction=ExtractOptions(
            dtype=dtype,
            codec=codec,
            shard_tokens=shard_tokens,
            engine=EngineOptions(revision=revision, trust_remote_code=trust_remote_code),
        ),
    )
    run = partial(extract_on_ray, replicas=replicas) if ray else extract_here

    scanned = ShownScan()

    def extract(prompts: str, options: ExtractOptions) -> ExtractReport:
        scanned.close()
        with ShownExtraction("import") as shown:
            return run(
                prompts,
                model,
                url,
                options,
                on_start=shown.start,
                on_tokens=shown.advance,
                on_wait=shown.wait,
                on_notice=shown.notice,
            )

    try:
        with closing(scanned):
            report = import_states(chosen, model, url, extract, scanned.start, scanned.advance)
    except KeyboardInterrupt:
        tell(how_to_continue(url))
        raise
    _tell(url, report, json=json)
    failed = bool(report.refused or report.extraction.failed)
    if check:
        tell("validate:")
        validate(url, level="all", model=model, revision=revision)
    if failed:
        raise typer.Exit(1)


class ShownScan:
    """Shows how far the token ids are read."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._stack = ExitStack()

    def start(self, samples: int) -> None:
        """There are so many."""
        self._progress = self._stack.enter_context(progress("read ids", samples, "samples"))

    def advance(self, samples: int) -> None:
        """So many more are read."""
        self._progress.advance(samples)

    def close(self) -> None:
        """It is over; may be called twice."""
        self._stack.close()


def _tell(url: str, report: ImportReport, *, json: bool) -> None:
    extraction = report.extraction
    if json:
        print_json({"url": url, **asdict(report)})
    else:
        layers = ", ".join(map(str, report.layers))
        print_pairs(
            [
                ("data set", url),
                ("format", report.format),
                ("layers", f"{layers} (final states {report.norm_state}-norm)"),
                (
                    "samples",
                    f"{report.found:,} in the source, {sum(report.refused.values()):,} refused",
                ),
                ("shards", f"{extraction.committed} of {extraction.shards} committed"),
                ("tokens", f"{extraction.tokens:,}"),
            ]
        )
    for note in report.notes:
        tell(note)
    if extraction.failed or report.refused:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.refused.items())
        tell(
            f"Samples could not be taken in ({kinds or extraction.failed}); {url}/ledger says "
            "which and why.",
        )
