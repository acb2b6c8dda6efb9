"""What known models take: the tables of docs/recipes.md, by the arithmetic that `plan` goes by.

`python -m tools.recipes --write` puts them between the page's markers. The models' facts, from
their public config.json, are in tools/models.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from eagle3data.extractor.estimate import REFERENCE_SPEED
from eagle3data.schema.axis import EXPECTED_RATIO, SizeArithmetic, choose_axis
from eagle3data.schema.layers import Numbering, from_canonical
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.words import duration, rate, size

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "recipes.md"
MODELS = Path(__file__).with_name("models.json")

CONVERSATIONS, LENGTH = 10_000, 1_730
"""Of as many tokens each, 17.3 M in all: what was measured to train Kimi-K2.5's draft on."""
STATED_SPEED = 10_000
"""Tokens a second, for columns that need one."""
SPEEDS = (REFERENCE_SPEED, STATED_SPEED, 72_865.0)
_SPEED_SOURCE = {
    REFERENCE_SPEED: "Kimi-K2.5 on 8 GPUs, what `plan` assumes",
    STATED_SPEED: "a round number",
    72_865.0: "8 layers of hidden 7,168 on one H200 "
    "([written to memory](speed.md#extraction-with-vllm))",
}

Model = dict[str, Any]


def models() -> list[Model]:
    """The table file: `name`, `id`, the config's sizes, `options` of `extract`, `tried`."""
    found: list[Model] = json.loads(MODELS.read_text())
    return found


def planned(model: Model) -> tuple[Manifest, SizeArithmetic]:
    """The manifest and the sizes that `plan` would come to for such a model."""
    lengths = [LENGTH] * CONVERSATIONS
    sizes = {key: model[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size")}
    bare = Manifest.synthetic(**sizes)
    manifest = Manifest.synthetic(**sizes, axis=choose_axis(lengths, bare.row_bytes))
    return manifest, manifest.size_arithmetic(lengths)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _layers_row(model: Model) -> list[str]:
    manifest, sizes = planned(model)
    n = manifest.final_layer
    sglang = from_canonical(manifest.aux_layers, Numbering.SGLANG, n)
    return [
        model["name"],
        str(n),
        f"{manifest.hidden_size:,}",
        ", ".join(map(str, manifest.layers)),
        ", ".join(map(str, sglang)),
        f"{sizes.token_bytes:,} B",
    ]


def _bytes_row(model: Model) -> list[str]:
    manifest, sizes = planned(model)
    axis, per_second = manifest.storage.axis, sizes.token_bytes * STATED_SPEED
    shards = axis.shard_of(axis.place([LENGTH] * CONVERSATIONS)[-1]) + 1
    return [
        model["name"],
        *(size(sizes.stored_bytes(codec)) for codec in EXPECTED_RATIO),
        f"{shards:,}",
        f"{size(per_second)}/s",
    ]


def _speed_row(speed: float) -> list[str]:
    tokens = CONVERSATIONS * LENGTH
    return [f"{rate(speed)} tokens/s", duration(tokens / speed), _SPEED_SOURCE[speed]]


def _command(model: Model) -> str:
    words = ["eagle3data extract prompts.arrow --model", model["id"], model["options"]]
    return " ".join([*filter(None, words), "--out s3://bucket/states"])


def sections() -> dict[str, str]:
    """The text between each pair of the page's markers, by the markers' name."""
    known = models()
    header = ["model", "decoder layers N", "hidden", "captured by `auto`", "aux in SGLang's ids"]
    tried = [[model["name"], model["tried"]] for model in known if model["tried"]]
    return {
        "layers": _table([*header, "bytes a token"], [_layers_row(model) for model in known]),
        "bytes": _table(
            ["model", *EXPECTED_RATIO, "shards", f"to disk at {STATED_SPEED:,} tokens/s"],
            [_bytes_row(model) for model in known],
        ),
        "time": _table(["speed", "17.3 M tokens take", "which"], list(map(_speed_row, SPEEDS))),
        "commands": "\n".join(["```console", *map(_command, known), "```"]),
        "tried": _table(["model", "run by us"], tried),
    }


def filled(page: str) -> str:
    """The page with its sections made anew.

    Raises:
        ValueError: the page lacks a section's markers.
    """
    for name, text in sections().items():
        begin, end = f"<!-- {name}: made by tools/recipes.py -->", f"<!-- /{name} -->"
        before, marker, rest = page.partition(begin)
        _, closing, after = rest.partition(end)
        if not marker or not closing:
            raise ValueError(f"{PAGE} lacks '{begin}' or '{end}'.")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def main() -> None:
    """Write the page, or say that it is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    page = PAGE.read_text()
    if parser.parse_args().write:
        PAGE.write_text(filled(page))
    elif filled(page) != page:
        raise SystemExit(f"{PAGE} is not up to date: python -m tools.recipes --write")


if __name__ == "__main__":
    main()
