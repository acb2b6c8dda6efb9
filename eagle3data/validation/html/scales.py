"""From numbers to places on a drawing, and the round numbers that an axis names."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic scale.

    Attributes:
        low, high: numbers at the two ends; above 0 on a logarithmic scale.
        start, stop: their places.
        log: logarithmic.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a number; one beyond an end lies at that end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round numbers between the ends."""
        return _powers(self.low, self.high) if self.log else _steps(self.low, self.high, wanted)


def scale(low: float, high: float, start: float, stop: float, *, log: bool = False) -> Scale:
    """A scale that holds both numbers, even where they are equal."""
    if log:
        low = max(low, 1e-12)
        high = max(high, low)
        if high / low < 10:
            middle = math.sqrt(low * high)
            low, high = min(low, middle / 3.2), max(high, middle * 3.2)
    elif high <= low:
        high = low + 1
    return Scale(low, high, start, stop, log)


def _steps(low: float, high: float, wanted: int) -> list[float]:
    rough = (high - low) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    first = math.ceil(math.log10(low) - 1e-9)
    last = math.floor(math.log10(high) + 1e-9)
    every = max(1, (last - first + 1) // 4)
    return [10.0**power for power in range(first, last + 1, every)]


def brief(value: float) -> str:
    """A number in few characters: 1200 is 1.2k."""
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"
