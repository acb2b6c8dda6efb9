"""Numbers as people read them, alike in a terminal and on a page."""

from __future__ import annotations

import math


def size(count: float) -> str:
    """Bytes in decimal units: 992 GB is 992e9 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def duration(seconds: float) -> str:
    """Seconds as `42 s`, `3 min 20 s` or `5 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rate(per_second: float) -> str:
    """A number a second: whole from 10 on."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def hidden(count: int) -> str:
    """What to say behind a count when tombstones hide more samples."""
    return f", and {count:,} samples hidden by tombstones" if count else ""


def significant(value: float) -> str:
    """A magnitude with three digits, whole from 100 on: `0.0123`, `3.10`, `24,896`."""
    if not math.isfinite(value) or value == 0:
        return f"{value:.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(digits, 0)}f}" if digits < 7 else f"{value:.2e}"
