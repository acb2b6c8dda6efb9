"""`eagle3data regenerate`: answers written by the target itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import print_json, print_pairs, progress


def regenerate(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="JSONL or Parquet files.")],
    model: o.Model,
    out: Annotated[
        str, typer.Option("--out", metavar="CONVERSATIONS.jsonl", help="File to write.")
    ],
    max_new_tokens: Annotated[
        int, typer.Option(help="Answers are cut there and marked finish_reason: length.")
    ] = 1024,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    engine: o.Engine = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Conversations answered at once: 128 with transformers, 1,024 with vllm by "
            "default. A killed run loses at most twice as many."
        ),
    ] = None,
    dtype: o.ModelDtype = "bfloat16",
    seed: Annotated[int, typer.Option(help="Of the sampling, with a temperature.")] = 0,
    tensor_parallel_size: o.TensorParallelSize = 1,
    engine_arg: o.EngineArg = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = False,
) -> None:
    """Let the target answer every user message; running it again continues.

    SRC holds `messages`, `conversations`, `turns` or `prompt`; old answers are written anew. What
    the model thinks before it answers is kept.

    Example: eagle3data regenerate prompts.jsonl --model ./smollm2 --out conversations.jsonl
    """
    from eagle3data.cli.engine_args import engine_arguments
    from eagle3data.extractor.engines.choice import EngineOptions
    from eagle3data.extractor.regenerate import RegenerateOptions
    from eagle3data.extractor.regenerate import regenerate as run
    from eagle3data.extractor.sources import read_rows

    chosen = RegenerateOptions(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        batch_size=batch_size,
        dtype=dtype,
        seed=seed,
        engine=EngineOptions(
            engine=engine,
            tensor_parallel_size=tensor_parallel_size,
            arguments=engine_arguments(engine_arg),
            revision=revision,
            trust_remote_code=trust_remote_code,
        ),
    )
    rows = sum(1 for _ in read_rows(sources))
    with progress("regenerate", rows, "rows") as shown:
        report = run(
            sources,
            model,
            out,
            chosen,
            on_rows=lambda n, tokens: shown.advance(n, tokens=f"{tokens:,}"),
        )
    if json:
        print_json(asdict(report))
        return
    print_pairs(
        [
            ("conversations", report.conversations),
            ("rows", f"{report.rows:,}, {report.rejected:,} of them refused"),
            ("kept", f"{report.kept:,} from an earlier run"),
            ("answers", f"{report.answers:,}, {report.cut_answers:,} of them cut off"),
            ("tokens", f"{report.new_tokens:,} written"),
            *([("see", report.rejects)] if report.rejected else []),
        ]
    )
