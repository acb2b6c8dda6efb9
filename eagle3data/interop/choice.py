"""Which layout a source has, and its reader."""

from __future__ import annotations

from collections.abc import Callable

from eagle3data.interop.detection import formats_at
from eagle3data.interop.eagle import EagleSource
from eagle3data.interop.source import SourceOptions, StateSource
from eagle3data.interop.specforge import SpecForgeSource
from eagle3data.interop.speculators import SpeculatorsSource
from eagle3data.schema.errors import InputError

_Opener = Callable[[SourceOptions, int, int | None], StateSource]

_OPENERS: dict[str, _Opener] = {
    "speculators": lambda options, hidden_size, _: SpeculatorsSource(options, hidden_size),
    "specforge": SpecForgeSource,
    "eagle": lambda options, hidden_size, _: EagleSource(options, hidden_size),
}

FORMATS = tuple(_OPENERS)
"""Layouts that can be named; `auto` looks which one it is."""


def open_source(
    options: SourceOptions, *, hidden_size: int, pad_token_id: int | None
) -> StateSource:
    """Open a data set in another project's layout.

    Args:
        options: where it lies, and what a person says of it.
        hidden_size: H of the target.
        pad_token_id: of the target's tokenizer; `options.pad_token_id` goes before it.

    Raises:
        InputError: nothing there, a format that is not known, or a layout that is none or
            several of `FORMATS`.
    """
    name = options.format if options.format != "auto" else _only_format(options)
    opener = _OPENERS.get(name)
    if opener is None:
        raise InputError(f"There is no format {name!r}. Name one of {', '.join(FORMATS)}, or auto.")
    return opener(options, hidden_size, pad_token_id)


def _only_format(options: SourceOptions) -> str:
    found = formats_at(options.path)
    if len(found) == 1:
        return next(iter(found))
    signs = "; ".join(f"{name} ({sign})" for name, sign in sorted(found.items()))
    raise InputError(
        f"{options.path} "
        + (f"looks like several layouts: {signs}." if found else "has no layout that is known.")
        + f" Name the folder with the files themselves, or the format: {', '.join(FORMATS)}."
    )
