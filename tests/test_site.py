"""The documentation's site builds without a warning and asks no other machine for anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import DOCS
from tools import docs


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    pytest.importorskip("mkdocs", reason="needs the extra 'docs'")
    done = docs.build(folder)
    # Strict: a broken link, a missing anchor and a page outside the navigation end it.
    assert (done.returncode, done.stdout.strip()) == (0, "")
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in DOCS.glob("*.md"):
        text = (site / page.with_suffix(".html").name).read_text()
        assert "<h1" in text


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"([^\"]+)", text)
        loaded += re.findall(r"<link[^>]*\shref=\"([^\"]+)", text)
        assert loaded
        assert not [one for one in loaded if re.match(r"(https?:)?//", one)], page.name
    styles = "".join(file.read_text() for file in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)


def test_tables_and_lists_came_out_as_such(site: Path) -> None:
    """The site's Markdown wants a blank line before them, a code host doesn't."""
    for page in site.glob("*.html"):
        body = page.read_text().partition("<article")[2].partition("</article>")[0]
        told = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", body, flags=re.DOTALL)
        assert not re.search(r"^(- |\| |[0-9]\. )", told, re.MULTILINE), page.name
        assert "<p>|" not in told
        assert "```" not in told
