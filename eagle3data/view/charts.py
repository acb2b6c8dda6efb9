"""Charts as plain data: view.js hands them to Chart.js in the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
_MOST_POINTS = 1200
"""More than a window has columns; a longer line is thinned to it, its ends kept."""


@dataclass(frozen=True)
class Series:
    """One line, or one bar of each group; None, and what is not finite, leaves a gap."""

    name: str
    values: Sequence[float | int | None]


def lines(
    title: str,
    caption: str,
    x: Sequence[float | int | str],
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    log: bool = False,
    share: bool = False,
) -> Spec:
    """Lines over common places; `share` shows 0 to 1 as per cent."""
    keep = _thinned(len(x))
    return {
        "kind": "line",
        "title": title,
        "caption": caption,
        "x": [x[at] for at in keep],
        "series": [
            {"name": one.name, "y": _plain([one.values[at] for at in keep])} for one in series
        ],
        "x_title": x_title,
        "y_title": y_title,
        "log": log,
        "share": share,
    }


def bars(
    title: str,
    caption: str,
    names: Sequence[str],
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    share: bool = False,
) -> Spec:
    """Bars, a group a name."""
    return {
        "kind": "bar",
        "title": title,
        "caption": caption,
        "x": list(names),
        "series": [{"name": one.name, "y": _plain(one.values)} for one in series],
        "x_title": x_title,
        "y_title": y_title,
        "log": False,
        "share": share,
    }


def _plain(values: Sequence[float | int | None]) -> list[float | int | None]:
    """Values that JSON knows."""
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _thinned(count: int) -> list[int]:
    if count <= _MOST_POINTS:
        return list(range(count))
    return [round(at * (count - 1) / (_MOST_POINTS - 1)) for at in range(_MOST_POINTS)]
