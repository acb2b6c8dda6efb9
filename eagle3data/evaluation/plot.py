"""An evaluation as a figure: what is kept, of which categories, and what it brings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3data.schema.errors import InputError

SUFFIXES = (".png", ".svg", ".pdf")
_OURS, _WITHOUT, _PALE = "#1a6fb5", "#bbbbbb", "#9cc3e4"
_INCHES_A_BAR = 0.32
ALL = "all"

Found = Mapping[str, Any]
"""`Evaluation.as_dict()`, or its JSON read back."""


def check_plot(file: Path) -> None:
    """Say before the work begins that its figure can't be drawn.

    Raises:
        InputError: a kind of file that can't be written, or no folder for it.
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib as _  # noqa: F401

    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file}: a plot is written as {', '.join(SUFFIXES)}.")
    if not file.absolute().parent.is_dir():
        raise InputError(f"{file.absolute().parent} is no folder, so no plot can be written there.")


def plot(found: Found, file: Path) -> None:
    """Draw kept tokens by position, acceptance length by category, tokens/s with and without.

    The last panel is left out where answers were not written without the draft.
    """
    from matplotlib.figure import Figure

    parts = _parts(found)
    compared = all(part["tokens_per_second_without_draft"] for part in parts.values())
    height = 3.2 + _INCHES_A_BAR * max(0, len(parts) - 4)
    figure = Figure(figsize=(12 if compared else 8.5, height), layout="constrained")
    panels = figure.subplots(1, 3 if compared else 2)
    _positions(panels[0], found)
    _lengths(panels[1], parts, found["num_speculative_tokens"])
    if compared:
        _speeds(panels[2], parts)
    for axes in panels:
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(_title(found), fontsize=9)
    figure.savefig(file, dpi=150)


def _parts(found: Found) -> dict[str, Found]:
    """What is drawn: every category, and all of them together where there are several."""
    parts: dict[str, Found] = {
        name: part for name, part in found["categories"].items() if part["drafts"]
    }
    return {**parts, ALL: found} if len(parts) != 1 else parts


def _title(found: Found) -> str:
    return (
        f"{Path(found['draft']).name} drafting {found['num_speculative_tokens']} tokens a step for "
        f"{Path(found['model']).name}: {found['answers']:,} answers, {found['tokens']:,} tokens"
    )


def _positions(axes: Any, found: Found) -> None:
    rates = [100 * rate for rate in found["acceptance_by_position"]]
    drawn = axes.bar([str(at) for at in range(1, len(rates) + 1)], rates, color=_OURS)
    axes.bar_label(drawn, fmt="%.0f%%", padding=2, fontsize=8)
    axes.set_title("kept, by drafted position", loc="left", fontsize=10)
    axes.set_ylabel("% of steps", fontsize=8)
    axes.set_ylim(0, 105)


def _lengths(axes: Any, parts: Mapping[str, Found], drafted: int) -> None:
    lengths = [part["acceptance_length"] or 1.0 for part in parts.values()]
    colors = [_PALE if name != ALL else _OURS for name in parts]
    drawn = axes.barh(list(parts), [length - 1 for length in lengths], left=1, color=colors)
    axes.bar_label(drawn, labels=[f"{one:.2f}" for one in lengths], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(1, drafted + 1)
    axes.set_title("acceptance length", loc="left", fontsize=10)
    axes.set_xlabel(f"tokens a step (1: no use, {drafted + 1}: all right)", fontsize=8)


def _speeds(axes: Any, parts: Mapping[str, Found]) -> None:
    places = range(len(parts))
    speeds = [part["tokens_per_second"] for part in parts.values()]
    without = [part["tokens_per_second_without_draft"] for part in parts.values()]
    axes.barh([at - 0.2 for at in places], speeds, 0.38, color=_OURS, label="with the draft")
    axes.barh([at + 0.2 for at in places], without, 0.38, color=_WITHOUT, label="without")
    for at, (one, other) in enumerate(zip(speeds, without, strict=True)):
        axes.annotate(
            f"{one / other:.2f}x", (one, at - 0.2), (3, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(list(places), list(parts))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title("speed", loc="left", fontsize=10)
    axes.set_xlabel("tokens/s", fontsize=8)
    axes.legend(fontsize=8, frameon=False)
