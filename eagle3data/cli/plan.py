"""`eagle3data plan`: what an extraction will take, before anything is written."""

from __future__ import annotations

from typing import Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import duration, err, print_json, print_pairs, size

_REFERENCE_SPEED = 3165.0


def plan(
    prompts: o.Prompts,
    model: o.Model,
    url: o.Out,
    layers: o.Layers = "auto",
    numbering: o.NumberingOption = None,
    dtype: o.Dtype = "float16",
    codec: o.CodecOption = "none",
    shard_tokens: o.ShardTokens = None,
    tokens_per_second: Annotated[
        float, typer.Option(help="Prompt tokens/s of the engine; Kimi-K2.5 on 8 GPUs by default.")
    ] = _REFERENCE_SPEED,
    revision: o.Revision = None,
    json: o.Json = False,
) -> None:
    """Tokens, shards, bytes, time and free space; exit code 1 if it won't fit.

    Example: eagle3data plan prompts.arrow --model ./smollm2 --out ./states --codec pcodec
    """
    from eagle3data.extractor.plan import make_plan
    from eagle3data.extractor.prompts import read_prompts
    from eagle3data.schema.axis import EXPECTED_RATIO
    from eagle3data.storage.root import Root

    made = make_plan(
        read_prompts(prompts),
        model,
        revision=revision,
        layers=layers,
        numbering=numbering,
        dtype=dtype,
        codec=codec,
        shard_tokens=shard_tokens,
    )
    sizes, manifest = made.sizes, made.manifest
    stored = {profile: sizes.stored_bytes(profile) for profile in EXPECTED_RATIO}
    room = Root(url).room()
    free = room[0] if room else None
    fits = free is None or free >= stored[codec]
    seconds = sizes.tokens / tokens_per_second
    if json:
        print_json(
            {
                "samples": made.table.num_rows,
                "tokens": sizes.tokens,
                "layers": manifest.layers,
                "shards": made.shards,
                "shard_tokens": manifest.storage.shard_tokens,
                "chunk_tokens": manifest.storage.chunk_tokens,
                "state_bytes": sizes.state_bytes,
                "expected_bytes": stored,
                "seconds": seconds,
                "free_bytes": free,
                "fits": fits,
            }
        )
    else:
        print_pairs(
            [
                ("samples", f"{made.table.num_rows:,}"),
                ("tokens", f"{sizes.tokens:,}"),
                ("layers", f"{manifest.layers} of a target of {manifest.final_layer}"),
                ("a token", arithmetic_line(sizes)),
                ("shards", f"{made.shards} of {manifest.storage.shard_tokens:,} tokens"),
                *[(f"bytes, {profile}", size(count)) for profile, count in stored.items()],
                ("free", "not known" if free is None else size(free)),
                (
                    "time",
                    f"{duration(seconds)} at {tokens_per_second:,.0f} tokens/s"
                    + (
                        " (Kimi-K2.5 on 8 GPUs; give yours with --tokens-per-second)"
                        if tokens_per_second == _REFERENCE_SPEED
                        else ""
                    ),
                ),
            ]
        )
    for warning in manifest.warnings:
        err.print(f"warning: {warning}")
    if not fits:
        err.print(f"{url} has {size(free or 0)} free; profile {codec} takes {size(stored[codec])}.")
        raise typer.Exit(1)


def arithmetic_line(sizes: object) -> str:
    """One token's bytes, and all of them, as a sum that can be checked by hand."""
    from eagle3data.schema.axis import SizeArithmetic

    if not isinstance(sizes, SizeArithmetic):
        raise TypeError(f"expected SizeArithmetic, got {type(sizes).__name__}")
    return (
        f"{sizes.layers} layers x {sizes.hidden_size:,} x {sizes.item_bytes} B = "
        f"{sizes.token_bytes:,} B; x {sizes.tokens:,} tokens = {size(sizes.state_bytes)}"
    )
