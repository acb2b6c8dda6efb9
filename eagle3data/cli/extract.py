"""`eagle3data extract`: run the target and write its hidden states."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, tell
from eagle3data.cli.extraction import ShownExtraction, how_to_continue
from eagle3data.schema.errors import InputError


def extract(
    prompts: o.Prompts,
    model: o.Model,
    url: o.Out,
    layers: o.Layers = "auto",
    numbering: o.NumberingOption = None,
    engine: o.Engine = "auto",
    dtype: o.Dtype = "float16",
    codec: o.CodecOption = "none",
    compute_dtype: o.ComputeDtype = "auto",
    shard_tokens: o.ShardTokens = None,
    tensor_parallel_size: o.TensorParallelSize = 1,
    engine_arg: o.EngineArg = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A running `vllm serve`; see `eagle3data serve-args`."),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run engines on the nodes of a Ray cluster.")
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(metavar="N", help="Engines on the cluster; by default as many as fit."),
    ] = None,
    shards: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only shards A up to, not including, B.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add these prompts to a set made from others.")
    ] = False,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = False,
) -> None:
    """Run the target over PROMPTS.arrow and write its hidden states.

    Running it again continues at the next missing shard; a finished set is left alone. Started
    several times, on one machine or many, the runs share the shards. Samples that `repair` put
    aside are done again, in new shards.

    Example: eagle3data extract prompts.arrow --model ./smollm2 --out ./states
    """
    from eagle3data.cli.engine_args import engine_arguments
    from eagle3data.extractor.engines.choice import EngineOptions
    from eagle3data.extractor.on_ray import extract_on_ray
    from eagle3data.extractor.run import ExtractOptions
    from eagle3data.extractor.run import extract as extract_here

    if replicas is not None and not ray:
        raise InputError("--replicas counts the engines of --ray: add it, or leave both out.")
    chosen = ExtractOptions(
        layers=layers,
        numbering=numbering,
        engine=EngineOptions(
            engine=engine,
            endpoint=endpoint,
            tensor_parallel_size=tensor_parallel_size,
            arguments=engine_arguments(engine_arg),
            revision=revision,
            trust_remote_code=trust_remote_code,
        ),
        dtype=dtype,
        codec=codec,
        compute_dtype=compute_dtype,
        shard_tokens=shard_tokens,
        shards=_range(shards),
        append=append,
    )
    with ShownExtraction("extract") as shown:
        run = partial(extract_on_ray, replicas=replicas) if ray else extract_here
        try:
            report = run(
                prompts,
                model,
                url,
                chosen,
                on_start=shown.start,
                on_tokens=shown.advance,
                on_wait=shown.wait,
                on_notice=shown.notice,
            )
        except KeyboardInterrupt:
            tell(how_to_continue(url))
            raise
    if json:
        print_json({"url": url, **report.__dict__})
    elif report.written:
        out.print(
            f"{url}: {report.written} shards written, {report.committed} of {report.shards} "
            f"committed, {report.tokens:,} tokens planned."
        )
    else:
        out.print(
            f"{url} is complete: {report.committed} of {report.shards} shards. Nothing to do."
        )
    if report.repeated and not json:
        out.print(f"{report.repeated} of these prompts were part of the set before.")
    if report.failed:
        tell(f"{report.failed} samples could not be written; {url}/ledger says which and why.")
        raise typer.Exit(1)


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    numbers = re.fullmatch(r"([0-9]+):([0-9]+)", text)
    if numbers is None:
        raise InputError(f"--shards {text}: expected two numbers A:B, for example 0:8.")
    return int(numbers[1]), int(numbers[2])
