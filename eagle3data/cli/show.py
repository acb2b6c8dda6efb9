"""`eagle3data show`: one sample, its tokens and mask, its norms, where its bytes lie."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import (
    out,
    print_json,
    print_pairs,
    print_table,
    print_text,
    visible,
)
from eagle3data.schema.errors import InputError
from eagle3data.schema.words import significant

if TYPE_CHECKING:
    from eagle3data.readers.dataset import Dataset


_OPENING, _CLOSING = "[[", "]]"


def show(
    url: o.Url,
    sample: Annotated[str, typer.Argument(help="A sample id, or its position, from 0.")],
    model: Annotated[
        str | None,
        typer.Option(help="Hugging Face folder or id, to print tokens as text instead of ids."),
    ] = None,
    revision: o.Revision = None,
    json: o.Json = False,
) -> None:
    """One sample: tokens with their mask, per layer norms, where its bytes lie.

    Tokens that carry loss are marked; without --model they are shown as ids.

    Example: eagle3data show ./states 0 --model ./smollm2
    """
    from eagle3data.readers.dataset import open_dataset
    from eagle3data.readers.overview import describe_sample

    dataset = open_dataset(url)
    facts = describe_sample(dataset, _position(dataset, sample))
    if json:
        print_json(facts)
        return
    print_pairs(
        [
            ("sample", f"{facts['sample_id']} (position {facts['position']})"),
            ("source", _origin(facts)),
            ("tokens", f"{facts['length']:,}, {sum(facts['loss_mask']):,} with loss"),
            (
                "lies at",
                f"token {facts['token_offset']:,}: shard {facts['shard']}, chunks "
                f"{facts['chunks'][0]} to {facts['chunks'][1]}",
            ),
            ("witness", _witness(facts)),
        ]
    )
    out.print()
    print_table(
        ("layer", "row norm min", "median", "max", "object"),
        [
            [
                str(row["layer"]),
                *(significant(row[name]) for name in ("min", "median", "max")),
                row["object"],
            ]
            for row in facts["layers"]
        ],
        left=["object"],
    )
    _print_tokens(facts["input_ids"], facts["loss_mask"], model, revision)


def _origin(facts: dict[str, Any]) -> str:
    extra = [f"{name} {value}" for name, value in facts["source_extra"].items()]
    return ", ".join([facts["source"] or "not said", f"split {facts['split'] or 'none'}", *extra])


def _witness(facts: dict[str, Any]) -> str:
    token, logprob = facts["witness_token"], facts["witness_logprob"]
    if token is None:
        return "none"
    sure = "" if logprob is None else f", log-probability {logprob:.3g}"
    return f"token {token} next, said the engine{sure}"


def _position(dataset: Dataset, sample: str) -> int:
    try:
        return dataset.position(sample)
    except KeyError:
        pass
    if re.fullmatch("[0-9]+", sample) and int(sample) < len(dataset):
        return int(sample)
    raise InputError(
        f"{dataset.url} has no sample {sample!r}: expected a sample id, or a position from 0 to "
        f"{len(dataset) - 1}."
    )


def _print_tokens(
    input_ids: list[int], loss_mask: list[int], model: str | None, revision: str | None
) -> None:
    from rich.text import Text

    words = [f"{token} " for token in input_ids]
    if model is not None:
        from eagle3data.storage.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(model, revision=revision)
        words = [tokenizer.decode([token]) for token in input_ids]
    words = [visible(word, keep="\n\t") for word in words]
    if not out.is_terminal or out.no_color or out.color_system is None:
        print_text(Text(f"\ntokens with loss stand between {_OPENING} and {_CLOSING}\n"))
        print_text(Text(_bracketed(words, loss_mask)))
        return
    text = Text()
    for word, mask in zip(words, loss_mask, strict=True):
        text.append(word, style="bold green" if mask else "dim")
    out.print("\ntokens [bold green]with loss[/bold green] and [dim]without[/dim]\n")
    print_text(text)


def _bracketed(words: list[str], loss_mask: list[int]) -> str:
    """The text with each run of tokens that carry loss between brackets."""
    pieces = []
    for kept, run in groupby(zip(words, loss_mask, strict=True), key=lambda pair: bool(pair[1])):
        joined = "".join(word for word, _ in run)
        pieces.append(f"{_OPENING}{joined}{_CLOSING}" if kept else joined)
    return "".join(pieces)
