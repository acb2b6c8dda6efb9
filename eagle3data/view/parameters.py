"""Parameters of a request, read strictly: what is not one of the few things expected is no page."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.requests import Request

from eagle3data.schema.errors import Eagle3DataError

_WHOLE_NUMBER = re.compile("[0-9]{1,9}")


class NotHereError(Eagle3DataError):
    """A page, a sample or a shard that does not exist; `view` answers 404 with the message."""


def text(request: Request, name: str, default: str = "") -> str:
    """A parameter as it came."""
    return request.query_params.get(name, default)


def choice(request: Request, name: str, choices: Collection[str], default: str) -> str:
    """One of some words.

    Raises:
        NotHereError: it is another.
    """
    value = request.query_params.get(name) or default
    if value not in choices:
        known = ", ".join(sorted(filter(None, choices)))
        raise NotHereError(f"{name} is {value!r}; expected one of {known}.")
    return value


def whole_number(request: Request, name: str, default: int | None = None) -> int | None:
    """A number from 0, or the default where it was not given.

    Raises:
        NotHereError: it is something else.
    """
    value = request.query_params.get(name)
    if not value:
        return default
    if not _WHOLE_NUMBER.fullmatch(value):
        raise NotHereError(f"{name} is {value!r}; expected a whole number.")
    return int(value)
