"""The pages that people read: README and docs, and what stands in their fences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [text for found, text in _FENCE.findall(page.read_text()) if found == language]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def headings(page: Path) -> Iterator[str]:
    """Its headings' anchors as code hosts make them of the text."""
    seen: dict[str, int] = {}
    for line in prose(page).splitlines():
        if found := re.match(r"#+ (.*)", line):
            anchor = re.sub(r"[^\w\- ]", "", found[1].lower()).replace(" ", "-")
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            yield f"{anchor}-{count}" if count else anchor


def links(page: Path) -> list[str]:
    """What its links and pictures point to."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))
