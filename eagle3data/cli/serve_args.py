"""`eagle3data serve-args`: arguments for a vLLM server that `extract --endpoint` can use."""

from __future__ import annotations

from typing import Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, tell


def serve_args(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hugging Face folder or id.")],
    layers: o.Layers = "auto",
    numbering: o.NumberingOption = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where the states are handed over: unix:PATH (the default: a new private "
            "folder), or tcp:HOST:PORT for an `extract` on another machine.",
        ),
    ] = None,
    revision: o.Revision = None,
    json: o.Json = False,
) -> None:
    """Print what a vLLM server must be started with, on one line that no shell takes apart.

    The line holds a secret that `extract --endpoint` asks the server for. The server may be used
    by others as well; its prefix caching is off.

    Example: vllm serve ./smollm2 --max-model-len 8192 $(eagle3data serve-args ./smollm2)
    """
    from eagle3data.extractor.engines.vllm_settings import (
        Doorway,
        capture_arguments,
        command_line,
    )
    from eagle3data.schema.layers import parse_layers
    from eagle3data.schema.target import describe_target

    target, _ = describe_target(model, revision)
    chosen = parse_layers(layers, target.num_hidden_layers, numbering)
    doorway = Doorway.of_server(listen)
    words = command_line(capture_arguments(chosen, doorway))
    if json:
        print_json({"arguments": words, "layers": chosen, "listen": doorway.address})
        return
    tell(
        f"vllm serve {model} ARGUMENTS\n"
        f"(vLLM's CPU build: python -m vllm.entrypoints.openai.api_server --model {model} "
        "ARGUMENTS)\n"
        f"layers {','.join(map(str, chosen))}, states at {doorway.address}; ARGUMENTS:",
    )
    out.print(" ".join(words), markup=False, emoji=False)
