"""The Python that README and docs show runs as it stands there, on real states."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import create_autospec

import pytest

import eagle3data
from eagle3data import open_dataset
from tests.pages import PAGES, blocks

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


NEEDS = {"speculators.md": ["speculators", "specforge"]}
"""Libraries that a page is about, where the tests can do without them."""


def test_pages_with_python_are_found() -> None:
    assert {"README.md", "loader.md", "python.md", "validate.md"} <= {
        page.name for page in WITH_PYTHON
    }


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_blocks_run(
    page: Path, states: str, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page's blocks one after another, with this machine's set, model and device."""
    for library in NEEDS.get(page.name, []):
        pytest.importorskip(library)
    here = {
        '"MODEL"': repr(str(smollm2)),
        '"./states"': repr(states),
        '"s3://bucket/states"': repr(states),
        '"./chat"': repr(states),
        '"./code"': repr(states),
        '"./mine"': repr(str(tmp_path / "mine")),
        '"/nvme/cache"': repr(str(tmp_path / "cache")),
        '"cuda"': '"cpu"',
    }
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        for shown, real in here.items():
            block = block.replace(shown, real)  # noqa: PLW2901
        if "Recompute(" in block:
            # Half a minute for what test_recompute.py runs: here only the arguments are looked at.
            monkeypatch.setattr(eagle3data, "validate", create_autospec(eagle3data.validate))
        exec(compile(block, page.name, "exec"), names)
    if page.name == "python.md":
        assert open_dataset(str(tmp_path / "mine")).index["split"].to_pylist() == ["train"]
        first = open_dataset(states)[0].hidden_states[30]
        assert (names["states"] == first).all()
