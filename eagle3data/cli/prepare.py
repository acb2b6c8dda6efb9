"""`eagle3data prepare`: conversations to prompts, masked and checked."""

from __future__ import annotations

from typing import Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import print_json, print_pairs, progress, tell


def prepare(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="JSONL or Parquet files.")],
    model: o.Model,
    out: Annotated[str, typer.Option("--out", metavar="PROMPTS.arrow", help="File to write.")],
    max_length: Annotated[
        int | None,
        typer.Option(help="Refuse longer samples (tokens); the model's context by default."),
    ] = None,
    eval_fraction: Annotated[
        float, typer.Option(help="Share of the samples that goes to the split `eval`.")
    ] = 0.05,
    max_rejects: Annotated[
        float, typer.Option(help="Share of the rows that may be refused; more is exit code 1.")
    ] = 0.05,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that can't be used (code 2).")
    ] = False,
    workers: Annotated[
        int, typer.Option(help="Processes that convert rows side by side; worth it from 10,000 on.")
    ] = 1,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = False,
) -> None:
    """Apply the chat template, mask the assistant's tokens, keep where each row came from.

    SRC is JSONL or Parquet with `messages`, ShareGPT's `conversations`, or `input_ids` and
    `loss_mask`. Rows that can't be used go to PROMPTS.rejects.jsonl with line and reason.

    Example: eagle3data prepare conversations.jsonl --model ./smollm2 --out prompts.arrow
    """
    from eagle3data.extractor.converter import PrepareOptions
    from eagle3data.extractor.prepare import prepare as run
    from eagle3data.extractor.sources import total_bytes

    chosen = PrepareOptions(
        max_length=max_length,
        eval_fraction=eval_fraction,
        max_rejects=max_rejects,
        strict=strict,
        workers=workers,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    with progress("prepare", total_bytes(sources), "B") as shown:
        report = run(sources, model, out, chosen, on_bytes=shown.advance)
    if json:
        print_json(report.as_json())
    else:
        print_pairs(
            [
                ("prompts", report.prompts),
                ("rows", f"{report.rows:,}, {report.rejected:,} of them refused"),
                ("samples", f"{report.samples:,}, {report.eval_samples:,} of them for evaluation"),
                ("tokens", f"{report.tokens:,}, {report.loss_tokens:,} of them the assistant's"),
                ("longest", f"{report.longest:,} tokens"),
                *[("refused", f"{n:,}: {reason}") for reason, n in report.reasons.items()],
                *([("see", report.rejects)] if report.rejected else []),
            ]
        )
    if report.samples and not report.eval_samples:
        tell(
            "no sample fell into the evaluation's part: raise --eval-fraction, or train with "
            "data.eval_split=null.",
        )
    if not report.ok:
        tell(
            f"{report.rejected} of {report.rows} rows were refused, more than "
            f"{report.max_rejects:.0%}: see {report.rejects}. {report.prompts} holds the "
            "usable ones; --max-rejects allows a larger share.",
        )
        raise typer.Exit(1)
