"""The captured layers drawn on the model's depth."""

from __future__ import annotations

from markupsafe import Markup

from eagle3data.schema.manifest import Manifest
from eagle3data.validation.html.elements import el

_HEIGHT, _TOP, _BAR = 92.0, 30.0, 26.0
_MARGIN = 14.0
_LABEL_ROOM = 30.0


def depth_drawing(manifest: Manifest, width: int) -> Markup:
    """Every decoder layer as a block, and a mark wherever a state was taken: between two of them.

    Args:
        manifest: of the set.
        width: units of the drawing; a page shows the one that fits its window.
    """
    n = manifest.final_layer
    step = (width - 2 * _MARGIN) / n
    gap = min(1.5, step / 4)
    blocks = [
        el("rect", x=_MARGIN + at * step + gap / 2, y=_TOP, width=step - gap, height=_BAR,
           rx=min(2.5, step / 4), class_="block")
        for at in range(n)
    ]  # fmt: skip
    drawn, last = [], [-_LABEL_ROOM, -_LABEL_ROOM]
    for layer in manifest.layers:
        x = _MARGIN + layer * step
        # A label that would touch its neighbour's goes below the blocks instead.
        row = 0 if x - last[0] >= _LABEL_ROOM else 1
        last[row] = x
        y = _TOP - 12 if row == 0 else _TOP + _BAR + 22
        final = " final" if layer == n else ""
        drawn += [
            el("line", x1=x, x2=x, y1=_TOP - 7, y2=_TOP + _BAR + 7, class_=f"taken{final}"),
            el("text", str(layer), x=x, y=y, text_anchor="middle", class_=f"id{final}"),
        ]
    y = _HEIGHT - 8
    ends = [
        el("text", "embeddings", x=_MARGIN, y=y, class_="end"),
        el("text", "norm, lm_head", x=width - _MARGIN, y=y, text_anchor="end", class_="end"),
    ]
    said = f"States were taken at {', '.join(map(str, manifest.layers))} of {n} decoder layers."
    drawing = el(
        "svg",
        *blocks,
        *drawn,
        *ends,
        viewBox=f"0 0 {width} {_HEIGHT:g}",
        role="img",
        aria_label=said,
        class_="depth",
    )
    return Markup(drawing)  # noqa: S704 - `el` escapes whatever is no markup of this package
