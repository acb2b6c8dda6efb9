"""Dataclasses of plain values back from what `dataclasses.asdict` and JSON made of them."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def revive(kind: type[T], value: Any) -> T:
    """One dataclass; fields that it has no value for keep their default.

    Raises:
        TypeError, ValueError, KeyError: the value is of another shape.
    """
    hints = typing.get_type_hints(kind)
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _revived(hints[name], value[name]) for name in known & value.keys()})


def _revived(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _revived(next(one for one in arguments if one is not type(None)), value)
    if origin is list:
        return [_revived(arguments[0], one) for one in value]
    if origin is dict:
        return {str(key): _revived(arguments[1], one) for key, one in value.items()}
    if is_dataclass(kind) and isinstance(kind, type):
        return revive(kind, value)
    return kind(value) if kind in (int, float, str) else value
