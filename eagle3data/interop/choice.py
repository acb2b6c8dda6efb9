"""Which layout a source has, and its reader."""

from __future__ import annotations

from collections.abc import Callable

from eagle3data.interop.deepspec import DeepSpecSource
from eagle3data.interop.detection import formats_at
from eagle3data.interop.eagle import EagleSource
from eagle3data.interop.modelopt import ModelOptimizerSource
from eagle3data.interop.source import SourceOptions, StateSource
from eagle3data.interop.specforge import SpecForgeSource
from eagle3data.interop.speculators import SpeculatorsSource
from eagle3data.interop.torchspec import TorchSpecSource
from eagle3data.schema.errors import InputError

_OPENERS: dict[str, Callable[[SourceOptions, int], StateSource]] = {
    "speculators": SpeculatorsSource,
    "specforge": SpecForgeSource,
    "model-optimizer": ModelOptimizerSource,
    "eagle": EagleSource,
    "torchspec": TorchSpecSource,
}

FORMATS = ("speculators", "specforge", "deepspec", "model-optimizer", "eagle", "torchspec")
"""Layouts that can be named; `auto` looks which one it is."""


def open_source(
    options: SourceOptions,
    *,
    hidden_size: int,
    num_hidden_layers: int | None = None,
) -> StateSource:
    """Open a data set in another project's layout.

    Args:
        options: where it lies, and what a person says of it.
        hidden_size: H of the target.
        num_hidden_layers: of the target, where known; a source that names its aux layers then
            names the final one too.

    Raises:
        InputError: nothing there, a format that is not known, or a layout that is none or
            several of `FORMATS`.
    """
    name = format_of(options)
    if name == "deepspec":
        return DeepSpecSource(options, hidden_size, num_hidden_layers)
    return _OPENERS[name](options, hidden_size)


def format_of(options: SourceOptions) -> str:
    """The layout that is named, or the only one that a source looks like.

    Raises:
        InputError: nothing there, a format that is not known, or a layout that is none or
            several of `FORMATS`.
    """
    name = options.format if options.format != "auto" else _only_format(options)
    if name not in FORMATS:
        raise InputError(f"There is no format {name!r}. Name one of {', '.join(FORMATS)}, or auto.")
    return name


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
