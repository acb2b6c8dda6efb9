"""A report as bars, in a PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3data.bench.report import Report, Section

_OURS, _LIMIT, _PEER = "#1a6fb5", "#bbbbbb", "#d98c3f"
_INCHES_A_ROW = 0.28


def plot(report: Report, file: Path) -> None:
    """Draw a panel a section, a bar a case: ours, limits and peers in three colours."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    heights = [len(_bars(part)) + 3 for part in report.sections]
    figure = Figure(figsize=(10, _INCHES_A_ROW * sum(heights) + 1), layout="constrained")
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    for axes, part in zip(grid[:, 0], report.sections, strict=True):
        _panel(axes, part)
    names = {"eagle3data, checked": _OURS, "limit of the machine": _LIMIT, "peer": _PEER}
    handles = [Patch(color=color, label=name) for name, color in names.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False)
    figure.supxlabel(report.machine.line(), fontsize=7)
    figure.savefig(file, dpi=150)


def _bars(part: Section) -> list[tuple[str, float]]:
    return [(row.case, row.speed / 1e9) for row in part.rows if row.speed is not None]


def _panel(axes: Any, part: Section) -> None:
    bars = _bars(part)
    names = [name for name, _ in bars]
    speeds = [speed for _, speed in bars]
    drawn = axes.barh(names, speeds, color=[_color(name) for name in names])
    axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_title(part.title, loc="left", fontsize=10)
    axes.set_xlabel("GB/s", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.margins(x=0.1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _color(case: str) -> str:
    if case.startswith("eagle3data"):
        return _OURS
    return _LIMIT if case.startswith(("raw ", "plain ")) else _PEER
