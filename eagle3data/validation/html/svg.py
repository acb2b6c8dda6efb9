"""A small plot: a frame with axes, and bars, bands, lines and marks in it. Colours are the page's.

Coordinates are those of a fixed drawing that the page scales to its column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eagle3data.validation.html.elements import Markup, el
from eagle3data.validation.html.scales import Scale, brief, scale


class Plot:
    """One drawing, `width` by `height` units."""

    def __init__(
        self,
        *,
        width: float = 280,
        height: float = 180,
        left: float = 40,
        right: float = 10,
        top: float = 14,
        bottom: float = 38,
    ) -> None:
        self.width, self.height = width, height
        self.left, self.right = left, width - right
        self.top, self.bottom = top, height - bottom
        self._drawn: list[Markup] = []

    def x_scale(self, low: float, high: float, *, log: bool = False) -> Scale:
        """A scale along the frame's width."""
        return scale(low, high, self.left, self.right, log=log)

    def y_scale(self, low: float, high: float, *, log: bool = False) -> Scale:
        """A scale up the frame's height."""
        return scale(low, high, self.bottom, self.top, log=log)

    def y_axis(self, y: Scale, label: Callable[[float], str] = brief) -> None:
        """Horizontal grid lines with their numbers."""
        for tick in y.ticks(3):
            at = y(tick)
            self.line([(self.left, at), (self.right, at)], "grid")
            self.text(self.left - 5, at + 3.5, label(tick), anchor="end")

    def x_axis(
        self, x: Scale, title: str, label: Callable[[float], str] = brief, wanted: int = 5
    ) -> None:
        """Numbers below the frame, and what they are."""
        for tick in x.ticks(wanted):
            self.line([(x(tick), self.bottom), (x(tick), self.bottom + 4)], "axis")
            self.text(x(tick), self.bottom + 15, label(tick))
        self.base(title)

    def base(self, title: str) -> None:
        """The frame's lower edge and what lies along it."""
        self.line([(self.left, self.bottom), (self.right, self.bottom)], "axis")
        self.text((self.left + self.right) / 2, self.height - 5, title, class_="title")

    def bar(self, x: float, width: float, top: float, class_: str) -> None:
        """A bar from the frame's lower edge up to `top`; never invisible where it is not zero."""
        height = max(self.bottom - top, 0.0)
        self._drawn.append(
            el("rect", x=x, y=self.bottom - height, width=width, height=height, class_=class_, rx=2)
        )

    def box(self, x: float, y: float, width: float, height: float, class_: str) -> None:
        """A box anywhere."""
        self._drawn.append(el("rect", x=x, y=y, width=width, height=height, class_=class_))

    def line(self, points: Sequence[tuple[float, float]], class_: str) -> None:
        """A line through points."""
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._drawn.append(el("polyline", points=through, class_=class_))

    def band(
        self, upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]]
    ) -> None:
        """The area between two lines."""
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
        self._drawn.append(el("polygon", points=through, class_="band"))

    def text(
        self, x: float, y: float, said: str, *, anchor: str = "middle", class_: str = "label"
    ) -> None:
        """A piece of text on a baseline."""
        self._drawn.append(el("text", said, x=x, y=y, text_anchor=anchor, class_=class_))

    def render(self, title: str, description: str) -> Markup:
        """The drawing, with what a screen reader says of it.

        Args:
            title: what it shows.
            description: what can be seen in it, numbers included.
        """
        return el(
            "svg",
            *self._drawn,
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="img",
            aria_label=f"{title}. {description}",
            class_="plot",
        )
