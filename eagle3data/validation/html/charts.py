"""The plots that convince: what the semantic level measured, and how long the samples are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eagle3data.validation.html.elements import Markup, el
from eagle3data.validation.html.scales import brief
from eagle3data.validation.html.svg import Plot
from eagle3data.validation.measured import ByShift, LayerMeasured, RmsByPosition, Witnesses
from eagle3data.validation.overview import Overview

_LINEAR_UP_TO = 30
"""Values further apart than this factor are drawn on a logarithmic scale."""


def identity_figure(layer: LayerMeasured) -> Markup:
    """Token identity by shift at one layer; it is right where 0 stands out."""
    return _by_shift_figure(
        f"Layer {layer.layer}",
        f"Token identity at layer {layer.layer}",
        layer.identity,
        expected=0,
        chance=layer.identity_chance,
    )


def next_token_figure(layer: LayerMeasured, measured: ByShift, *, final: bool) -> Markup:
    """Next token by shift at one layer; at the final layer it is right where +1 stands out."""
    return _by_shift_figure(
        f"Layer {layer.layer}" + (" (final)" if final else ""),
        f"Next token at layer {layer.layer}",
        measured,
        expected=1,
        chance=None,
    )


def _by_shift_figure(
    heading: str, title: str, measured: ByShift, *, expected: int, chance: float | None
) -> Markup:
    plot = Plot(top=22)
    y = plot.y_scale(0, 1)
    plot.y_axis(y, lambda share: f"{share:.0%}")
    room = (plot.right - plot.left) / max(len(measured.shifts), 1)
    for at, (shift, share) in enumerate(zip(measured.shifts, measured.shares, strict=True)):
        middle = plot.left + (at + 0.5) * room
        class_ = _bar_class(shift, expected, measured.best)
        plot.bar(middle - 0.36 * room, 0.72 * room, min(y(share), plot.bottom - 1), class_)
        plot.text(middle, plot.bottom + 15, _signed(shift))
        if room > 20:
            plot.text(middle, y(share) - 4, f"{share:.0%}", class_="value")
    if chance is not None:
        plot.line([(plot.left, y(chance)), (plot.right, y(chance))], "chance")
    plot.base("shift between state and token")
    shares = ", ".join(
        f"{_signed(shift)}: {share:.1%}"
        for shift, share in zip(measured.shifts, measured.shares, strict=True)
    )
    said = f"Agreement by shift over {measured.tested:,} rows: {shares}." + (
        "" if chance is None else f" A stranger's rows: {chance:.1%}."
    )
    best = (
        "no shift stands out"
        if measured.best is None
        else f"{_signed(measured.best)} stands out"
        + ("" if measured.best == expected else f", {_signed(expected)} was expected")
    )
    return _figure(plot.render(title, said), heading, f"{best}; {measured.tested:,} rows")


def _bar_class(shift: int, expected: int, best: int | None) -> str:
    if shift == best:
        return "bar good" if shift == expected else "bar bad"
    return "bar expected" if shift == expected else "bar"


def _signed(shift: int) -> str:
    return f"{shift:+d}".replace("-", "\u2212") if shift else "0"


def rms_figure(layer: int, rms: RmsByPosition) -> Markup | None:
    """Magnitude of single rows along the samples; None where nothing was measured."""
    if not rms.median:
        return None
    plot = Plot()
    middles = [(a + b + 1) / 2 for a, b in zip(rms.start, rms.stop, strict=True)]
    low, high = min(rms.low), max(rms.high)
    far = low > 0 and high / low > _LINEAR_UP_TO
    x = plot.x_scale(middles[0], middles[-1], log=True)
    y = plot.y_scale(low if far else 0, high, log=far)
    plot.y_axis(y)
    plot.band(
        [(x(at), y(value)) for at, value in zip(middles, rms.high, strict=True)],
        [(x(at), y(value)) for at, value in zip(middles, rms.low, strict=True)],
    )
    line = [(x(at), y(value)) for at, value in zip(middles, rms.median, strict=True)]
    plot.line(
        line if len(line) > 1 else [(plot.left, line[0][1]), (plot.right, line[0][1])], "curve"
    )
    plot.x_axis(x, "position in the sample")
    said = (
        f"Median root mean square of a row from {brief(min(rms.median))} to "
        f"{brief(max(rms.median))}; first position {brief(rms.median[0])}, last "
        f"{brief(rms.median[-1])}. 90 % of rows lie between {brief(low)} and {brief(high)}."
    )
    title = f"Magnitude by position at layer {layer}"
    return _figure(plot.render(title, said), f"Layer {layer}", "median, and 5 to 95 % of rows")


def witness_figure(witness: Witnesses) -> Markup | None:
    """How far last rows are from what the engine said; None without numbers."""
    values = [value for value in witness.difference if not math.isnan(value)]
    if len(values) < 2:
        return None
    plot = Plot()
    floor = max(min((value for value in values if value > 0), default=1e-4), 1e-4)
    x = plot.x_scale(0, len(values) - 1)
    y = plot.y_scale(floor, max(*values, 1.0), log=True)
    plot.y_axis(y)
    plot.line([(x(at), y(max(value, floor))) for at, value in enumerate(values)], "curve")
    plot.x_axis(x, "percentile of the samples")
    said = (
        f"{witness.agreeing:,} of {witness.samples:,} samples give the engine's own next token. "
        f"Difference in log-probability: median {values[len(values) // 2]:.3g} nats, largest "
        f"{values[-1]:.3g}."
    )
    caption = f"{witness.agreeing:,} of {witness.samples:,} agree; difference in nats"
    return _figure(plot.render("Witness", said), "Last rows against the engine", caption)


def lengths_figure(overview: Overview) -> Markup | None:
    """How long the samples are; None for an empty set."""
    edges, counts = overview.length_edges, overview.length_counts
    if not counts:
        return None
    plot = Plot()
    x, y = plot.x_scale(edges[0], edges[-1]), plot.y_scale(0, max(counts))
    plot.y_axis(y)
    _bars(plot, [x(edge) for edge in edges], [y(count) for count in counts])
    plot.x_axis(x, "tokens of a sample", wanted=4)
    samples = sum(counts)
    most = max(range(len(counts)), key=counts.__getitem__)
    last = max(at for at, count in enumerate(counts) if count)
    said = (
        f"{samples:,} samples of at most {edges[last + 1] - 1:,} tokens; most, {counts[most]:,}, "
        f"have {edges[most]:,} to {edges[most + 1] - 1:,}."
    )
    return _figure(plot.render("Sample lengths", said), "Sample lengths", f"{samples:,} samples")


def _bars(plot: Plot, edges: Sequence[float], tops: Sequence[float]) -> None:
    for left, right, top in zip(edges, edges[1:], tops, strict=False):
        if top < plot.bottom:
            plot.bar(left + 0.5, max(right - left - 1, 0.5), min(top, plot.bottom - 1), "bar good")


def _figure(drawing: Markup, heading: str, caption: str) -> Markup:
    return el(
        "figure",
        el("figcaption", el("strong", heading), " ", el("span", caption, class_="quiet")),
        drawing,
    )
