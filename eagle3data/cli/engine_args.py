"""`--engine-arg NAME=VALUE`: vLLM's own arguments, by vLLM's own names."""

from __future__ import annotations

import json
from typing import Any

from eagle3data.schema.errors import InputError


def engine_arguments(given: list[str] | None) -> dict[str, Any]:
    """Names and values; a value is read as JSON where it is JSON, else as text.

    Raises:
        InputError: no `=` in it.
    """
    arguments: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(
                f"--engine-arg {text}: expected NAME=VALUE, for example "
                "max_num_batched_tokens=16384."
            )
        try:
            arguments[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            arguments[name.replace("-", "_")] = value
    return arguments
