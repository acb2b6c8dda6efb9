"""`eagle3data plan`: what an extraction will take, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from eagle3data.cli import options as o
from eagle3data.cli.console import print_json, print_pairs, tell
from eagle3data.schema.errors import InputError
from eagle3data.schema.words import duration, rate, size

if TYPE_CHECKING:
    from eagle3data.extractor.estimate import Pace, Room, ToDo
    from eagle3data.extractor.plan import Plan
    from eagle3data.schema.axis import SizeArithmetic
    from eagle3data.schema.manifest import Manifest


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
        float | None,
        typer.Option(min=0.001, help="Speed of the engine; Kimi-K2.5 on 8 GPUs by default."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="URL", help="As fast as this data set was, or is being, extracted."),
    ] = None,
    load_seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Time to load the model; by default its bytes at 2 GB/s."),
    ] = None,
    revision: o.Revision = None,
    json: o.Json = False,
) -> None:
    """Tokens, shards, bytes, time and free space; exit code 1 if it won't fit.

    Where --out holds a part of it already, room and time are those of what is left.

    Example: eagle3data plan prompts.arrow --model ./smollm2 --out ./states --codec pcodec
    """
    from eagle3data.extractor.estimate import load_seconds_of, what_is_left
    from eagle3data.extractor.plan import make_plan
    from eagle3data.extractor.prompts import read_prompts
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
    pace = _pace(tokens_per_second, like, made.manifest)
    todo = what_is_left(Root(url), made)
    is_estimate = load_seconds is None
    load = load_seconds_of(model, revision) if load_seconds is None else load_seconds
    if json:
        print_json(_as_json(made, todo, pace, load, is_estimate=is_estimate))
    else:
        print_pairs(_pairs(made, todo, pace, load, is_estimate=is_estimate))
    _warn(url, made, todo, pace)
    if not todo.room.fits:
        tell(
            f"{url} has {size(todo.room.free or 0)} free; profile {codec} takes "
            f"{size(todo.room.needed)}, and {size(todo.room.reserve)} are left to others.",
        )
        raise typer.Exit(1)


def arithmetic_line(sizes: SizeArithmetic) -> str:
    """One token's bytes, and all of them, as a sum that can be checked by hand."""
    return (
        f"{sizes.layers} layers x {sizes.hidden_size:,} x {sizes.item_bytes} B = "
        f"{sizes.token_bytes:,} B; x {sizes.tokens:,} tokens = {size(sizes.state_bytes)}"
    )


def _pace(tokens_per_second: float | None, like: str | None, manifest: Manifest) -> Pace:
    from eagle3data.extractor.estimate import REFERENCE_SPEED, Pace, pace_of

    if like is not None and tokens_per_second is not None:
        raise InputError("--like and --tokens-per-second both say how fast it is; give one.")
    if like is not None:
        return pace_of(like, manifest)
    if tokens_per_second is not None:
        return Pace(tokens_per_second=tokens_per_second, source="given")
    return Pace(
        tokens_per_second=REFERENCE_SPEED,
        source="Kimi-K2.5 on 8 GPUs; give yours with --tokens-per-second or --like",
    )


def _pairs(
    made: Plan, todo: ToDo, pace: Pace, load: float | None, *, is_estimate: bool
) -> list[tuple[str, str | Text]]:
    from eagle3data.schema.axis import EXPECTED_RATIO

    sizes, manifest, counts = made.sizes, made.manifest, made.samples_per_shard
    committed = made.shards - len(todo.shards)
    return [
        ("samples", f"{made.table.num_rows:,}"),
        ("tokens", f"{sizes.tokens:,}"),
        (
            "layers",
            f"{' '.join(map(str, manifest.layers))} of a target of {manifest.final_layer} layers",
        ),
        ("a token", arithmetic_line(sizes)),
        (
            "shards",
            f"{made.shards} of {manifest.storage.shard_tokens:,} tokens, with {min(counts)} to "
            f"{max(counts)} samples (mean {sum(counts) / len(counts):.1f})"
            + (f"; {committed} are committed" if committed else ""),
        ),
        *[
            (
                f"bytes, {profile}",
                f"{size(sizes.stored_bytes(profile))} stored, "
                f"{size(sizes.padding_free_bytes(profile))} without padding",
            )
            for profile in EXPECTED_RATIO
        ],
        ("disk", Text(_disk(todo.room), style="" if todo.room.fits else "bold red")),
        (
            "time",
            f"{duration(todo.sizes.tokens / pace.tokens_per_second)} at "
            f"{rate(pace.tokens_per_second)} tokens/s ({pace.source})",
        ),
        ("model load", _load(load, is_estimate=is_estimate)),
    ]


def _disk(room: Room) -> str:
    if room.free is None:
        return f"{size(room.needed)} to write; what is free is not known of an object store"
    at_end = room.free_at_end or 0
    return f"{size(room.needed)} to write; {size(room.free)} free now, " + (
        f"{size(at_end)} at the end" if at_end > 0 else f"{size(-at_end)} too little"
    )


def _load(seconds: float | None, *, is_estimate: bool) -> str:
    if seconds is None:
        return "not known: the model's folder holds no weights; give it with --load-seconds"
    estimate = ", estimated: its weights at 2 GB/s" if is_estimate else ""
    return f"{duration(seconds)} before the first token{estimate}"


def _as_json(
    made: Plan, todo: ToDo, pace: Pace, load: float | None, *, is_estimate: bool
) -> dict[str, Any]:
    from eagle3data.schema.axis import EXPECTED_RATIO

    sizes, manifest, counts = made.sizes, made.manifest, made.samples_per_shard
    left = todo.sizes.tokens / pace.tokens_per_second
    return {
        "samples": made.table.num_rows,
        "tokens": sizes.tokens,
        "layers": manifest.layers,
        "shards": made.shards,
        "committed_shards": made.shards - len(todo.shards),
        "samples_per_shard": {
            "min": min(counts),
            "mean": sum(counts) / len(counts),
            "max": max(counts),
        },
        "shard_tokens": manifest.storage.shard_tokens,
        "chunk_tokens": manifest.storage.chunk_tokens,
        "state_bytes": sizes.state_bytes,
        "padding_free_bytes": {name: sizes.padding_free_bytes(name) for name in EXPECTED_RATIO},
        "expected_bytes": {name: sizes.stored_bytes(name) for name in EXPECTED_RATIO},
        "needed_bytes": todo.room.needed,
        "free_bytes": todo.room.free,
        "free_bytes_at_end": todo.room.free_at_end,
        "fits": todo.room.fits,
        "tokens_per_second": pace.tokens_per_second,
        "speed_source": pace.source,
        "seconds": left,
        "load_seconds": load,
        "load_is_estimate": is_estimate,
        "total_seconds": None if load is None else left + load,
    }


def _warn(url: str, made: Plan, todo: ToDo, pace: Pace) -> None:
    for warning in made.manifest.warnings:
        tell(f"warning: {warning}")
    if pace.other_target is not None:
        tell(f"warning: that speed was measured with another model, {pace.other_target}.")
    if todo.is_foreign:
        tell(
            f"warning: {url} holds a data set from other prompts or with another --shard-tokens; "
            "`extract` adds to it only with --append, in new shards.",
        )
