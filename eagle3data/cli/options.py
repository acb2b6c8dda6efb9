"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from eagle3data.schema.layers import Numbering


def one_of(*values: str) -> Callable[[str], list[str]]:
    """What the shell offers after Tab where an option takes one of these values."""

    def offered(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return offered


COMPUTE_DTYPES = ("auto", "bfloat16", "float16", "float32")

Model = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="Hugging Face folder or id of the target.")
]
Revision = Annotated[str | None, typer.Option(help="Hub revision of the model.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let the model's own code run.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Url = Annotated[str, typer.Argument(metavar="URL", help="Root of the data set.")]
Prompts = Annotated[
    str, typer.Argument(metavar="PROMPTS.arrow", help="Written by `eagle3data prepare`.")
]
Out = Annotated[str, typer.Option("--out", metavar="URL", help="Root of the data set.")]
Layers = Annotated[
    str, typer.Option(help="'auto', or ids separated by commas; id k is what enters layer k.")
]
NumberingOption = Annotated[
    Numbering | None, typer.Option(help="Whose layer ids --layers names, where not ours.")
]
Dtype = Annotated[
    str,
    typer.Option(
        help="Storage dtype: float16 or bfloat16.", autocompletion=one_of("float16", "bfloat16")
    ),
]
CodecOption = Annotated[
    str,
    typer.Option(
        "--codec", help="none, lz4 or pcodec.", autocompletion=one_of("none", "lz4", "pcodec")
    ),
]
ShardTokens = Annotated[
    int | None, typer.Option(help="Tokens of a shard; chosen from the prompts by default.")
]
Engine = Annotated[
    str,
    typer.Option(
        envvar="EAGLE3DATA_ENGINE",
        help="auto (vllm where it is installed), vllm or transformers.",
        autocompletion=one_of("auto", "vllm", "transformers"),
    ),
]
TensorParallelSize = Annotated[
    int, typer.Option(min=1, metavar="N", help="GPUs that share the model (vLLM).")
]
EngineArg = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Another of vLLM's engine arguments; may be given again."
    ),
]
ComputeDtype = Annotated[
    str,
    typer.Option(
        envvar="EAGLE3DATA_COMPUTE_DTYPE",
        help="auto (the checkpoint's own), bfloat16, float16 or float32; the last is the fast one "
        "on CPUs that only emulate bfloat16.",
        autocompletion=one_of(*COMPUTE_DTYPES),
    ),
]
ModelDtype = Annotated[
    str,
    typer.Option(
        envvar="EAGLE3DATA_COMPUTE_DTYPE",
        help="Of the model: bfloat16, float16 or float32.",
        autocompletion=one_of(*COMPUTE_DTYPES[1:]),
    ),
]
