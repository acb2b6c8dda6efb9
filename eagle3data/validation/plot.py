"""A data set as a figure for a report: lengths, norms by layer, and what a validation measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.overview import statistics
from eagle3data.schema.manifest import StorageDtype
from eagle3data.schema.words import significant
from eagle3data.validation.findings import Report
from eagle3data.validation.measured import ByShift, LayerMeasured, Measured, Witnesses
from eagle3data.validation.overview import overview_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAIN, _PALE, _OTHER, _LIMIT = "#1a6fb5", "#9cc3e4", "#d98c3f", "#a33333"
_FLOAT16_MAX = 65_504.0
_SHARE_BINS = 20


def plot(dataset: Dataset, file: Path, report: Report | None = None) -> None:
    """Draw a data set into a file; its ending says the format.

    Args:
        dataset: its index is read, no state.
        file: a name that `evaluation.plot.check_plot` takes.
        report: of `validate`, level `semantic` or `all`, for the second row of panels.
    """
    draw(dataset, report).savefig(file, dpi=150)


def draw(dataset: Dataset, report: Report | None = None) -> Figure:
    """The figure: sample lengths, share of loss, norms by layer; with a report a second row.

    That row holds agreement by position (of the token that a state names, against its own), row
    norms along the samples, and the last rows against the engine's own next token; panels that the
    report has no numbers for stay out.
    """
    from matplotlib.figure import Figure

    facts = statistics(dataset)
    measured = report.measured if report is not None and report.measured is not None else None
    rows = 2 if measured and measured.layers else 1
    figure = Figure(figsize=(13, 3.6 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False)
    _lengths(panels[0, 0], dataset, facts)
    _loss_shares(panels[0, 1], dataset, facts)
    _norms(panels[0, 2], dataset, facts)
    if measured and measured.layers:
        _agreement(panels[1, 0], measured, dataset.manifest.final_layer)
        _norms_by_position(panels[1, 1], measured.layers)
        _witness(panels[1, 2], measured.witness)
    for axes in panels.flat:
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(_title(dataset, report), fontsize=10)
    return figure


def _title(dataset: Dataset, report: Report | None) -> str:
    target, capture = dataset.manifest.target, dataset.manifest.capture
    verdict = "" if report is None else f"; validate, level {report.level}: {report.verdict}"
    return (
        f"{target.name}: {len(dataset):,} samples, {dataset.tokens:,} tokens, layers "
        f"{', '.join(map(str, capture.layers))} of {target.num_hidden_layers}, {capture.dtype}, by "
        f"{capture.engine_version or capture.engine}{verdict}"
    )


def _heading(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)


def _lengths(axes: Any, dataset: Dataset, facts: dict[str, Any]) -> None:
    shape = overview_of(dataset.manifest, 0, dataset.index)
    if shape.length_counts:
        axes.stairs(shape.length_counts, shape.length_edges, fill=True, color=_PALE)
    _mark_median(axes, facts["length"]["median"], f"{facts['length']['median']:,.0f}")
    axes.yaxis.get_major_locator().set_params(integer=True)
    _heading(axes, "sample lengths", "tokens", "samples")


def _loss_shares(axes: Any, dataset: Dataset, facts: dict[str, Any]) -> None:
    index = dataset.index
    lengths = np.maximum(index["length"].to_numpy(), 1)
    counts, edges = np.histogram(
        index["n_loss_tokens"].to_numpy() / lengths, np.linspace(0, 1, _SHARE_BINS + 1)
    )
    axes.stairs(counts, edges, fill=True, color=_PALE)
    median = facts["loss_share"]["median"]
    _mark_median(axes, median, f"{median:.2f}")
    axes.yaxis.get_major_locator().set_params(integer=True)
    _heading(axes, "share of tokens with loss", "share of a sample", "samples")


def _mark_median(axes: Any, value: float, text: str) -> None:
    axes.axvline(value, color=_MAIN, linewidth=1.5, label=f"median {text}")
    axes.legend(fontsize=8, frameon=False)


def _norms(axes: Any, dataset: Dataset, facts: dict[str, Any]) -> None:
    """Root mean square of a sample's states, by layer, and the largest value of all."""
    layers = facts["layers"]
    places = list(range(len(layers)))
    rms = {
        name: np.array([row["rms"][name] for row in layers]) for name in ("p10", "median", "p90")
    }
    axes.errorbar(
        places,
        rms["median"],
        yerr=[rms["median"] - rms["p10"], rms["p90"] - rms["median"]],
        fmt="o",
        color=_MAIN,
        capsize=4,
        label="rms of a sample: median, 10 to 90 %",
    )
    largest = [row["absmax"] for row in layers]
    axes.plot(places, largest, "^", color=_OTHER, label="largest value")
    if dataset.manifest.storage.dtype is StorageDtype.FLOAT16:
        axes.axhline(_FLOAT16_MAX, color=_LIMIT, linewidth=1, linestyle="--", label="float16 ends")
    for place, median in zip(places, rms["median"], strict=True):
        axes.annotate(
            significant(float(median)), (place, median), (7, -3),
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.margins(x=0.15)
    axes.set_xticks(places, [str(row["layer"]) for row in layers])
    axes.legend(fontsize=7, frameon=False)
    _heading(axes, "norms by layer", "layer (id k is what enters layer k)", "magnitude")


def _agreement(axes: Any, measured: Measured, final_layer: int) -> None:
    """Whose token a state names: right where 0 (its own) and +1 (the next) stand out."""
    first, last = measured.layers[0], measured.layers[-1]
    drawn = [(f"layer {first.layer} names the token itself", first.identity, _MAIN, -0.2)]
    if last.layer == final_layer and last.next_token is not None:
        name = f"layer {last.layer} foretells, through norm and head"
        drawn.append((name, last.next_token, _OTHER, 0.2))
    for name, found, color, beside in drawn:
        _bars(axes, found, name, color, beside if len(drawn) > 1 else 0.0)
    shifts = sorted({shift for _, found, _, _ in drawn for shift in found.shifts})
    axes.set_xticks(shifts, [f"{shift:+d}" if shift else "0" for shift in shifts])
    axes.set_ylim(0, 119)
    axes.legend(fontsize=7, frameon=False, loc="upper right")
    _heading(axes, "agreement by position", "position against the state's own", "% of rows")


def _bars(axes: Any, found: ByShift, name: str, color: str, beside: float) -> None:
    places = [shift + beside for shift in found.shifts]
    label = f"{name} ({found.tested:,} rows)"
    bars = axes.bar(places, [100 * share for share in found.shares], 0.38, color=color, label=label)
    axes.bar_label(bars, fmt="%.0f", padding=2, fontsize=7)


def _norms_by_position(axes: Any, layers: list[LayerMeasured]) -> None:
    for number, layer in enumerate(layers):
        rms = layer.rms
        middles = [(start + stop + 1) / 2 for start, stop in zip(rms.start, rms.stop, strict=True)]
        color = f"C{number}"
        axes.fill_between(middles, rms.low, rms.high, color=color, alpha=0.15, linewidth=0)
        axes.plot(middles, rms.median, color=color, linewidth=1.5, label=f"layer {layer.layer}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize=7, frameon=False, ncols=2)
    _heading(axes, "row norms along the samples", "position from 1", "rms: median, 5 to 95 %")


def _witness(axes: Any, witness: Witnesses | None) -> None:
    _heading(
        axes, "last rows against the engine's own token", "percentile of samples", "nats apart"
    )
    if witness is None or not witness.difference:
        axes.text(0.5, 0.5, "not measured: no --model, or no witnesses", ha="center", fontsize=8,
                  transform=axes.transAxes)  # fmt: skip
        return
    axes.plot(range(len(witness.difference)), witness.difference, color=_MAIN)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", scilimits=(-3, 4), useMathText=True)
    axes.text(
        0.03, 0.93, f"{witness.agreeing:,} of {witness.samples:,} agree", fontsize=8,
        transform=axes.transAxes,
    )  # fmt: skip
