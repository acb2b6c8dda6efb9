"""HTML and SVG put together from escaped pieces: whatever is not `Markup` is text."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = {"meta", "br", "hr"}


class Markup(str):
    """Text that is markup already; only this module makes it from other text."""

    __slots__ = ()


def el(tag: str, *children: Markup | str | int | None, **attributes: str | float | None) -> Markup:
    """One element.

    Args:
        tag: its name.
        children: text, which is escaped, or elements; None is left out.
        attributes: values are escaped; `_` in a name stands for `-`, one at its end for none;
            None is left out.
    """
    named = "".join(
        f' {_name(name)}="{html.escape(_value(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{named}>")
    return Markup(f"<{tag}{named}>{join(children)}</{tag}>")


def join(children: Iterable[Markup | str | int | None]) -> Markup:
    """Pieces one after the other; text is escaped."""
    return Markup("".join(_piece(child) for child in children if child is not None))


def with_code(sentence: str) -> list[Markup | str]:
    """A sentence with what stands between backticks as code; one without a partner is text."""
    pieces = sentence.split("`")
    if len(pieces) % 2 == 0:
        return [sentence]
    return [el("code", piece) if at % 2 else piece for at, piece in enumerate(pieces)]


def style_sheet(css: str) -> Markup:
    """A `<style>`; the text is this package's own."""
    return Markup(f"<style>{css}</style>")


def document(head: Iterable[Markup], body: Iterable[Markup]) -> str:
    """A whole page in English."""
    page = el("html", el("head", *head), el("body", *body), lang="en")
    return f"<!doctype html>\n{page}\n"


def _piece(child: Markup | str | int) -> str:
    return child if isinstance(child, Markup) else html.escape(str(child))


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
