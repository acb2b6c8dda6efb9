"""The figure of an evaluation: drawn from its numbers, whatever of them there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3data.evaluation.plot import check_plot, plot
from eagle3data.schema.errors import InputError

pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")


def part(length: float, speed: float, without: float | None, drafts: int = 10) -> dict[str, Any]:
    return {
        "acceptance_length": length if drafts else None,
        "acceptance_by_position": [0.5, 0.25, 0.125] if drafts else [],
        "drafts": drafts,
        "answers": 3,
        "tokens": 1234,
        "tokens_per_second": speed,
        "tokens_per_second_without_draft": without,
    }


def found(without: float | None, categories: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "draft": "/somewhere/draft",
        "model": "some/model",
        "num_speculative_tokens": 3,
        **part(1.875, 300.0, without),
        "categories": categories,
    }


def texts(file: Path) -> str:
    """An SVG's words: matplotlib leaves each as a comment beside the glyphs it draws."""
    return file.read_text()


def test_every_category_and_the_whole(tmp_path: Path) -> None:
    categories = {
        "maths": part(2.42, 400.0, 200.0),
        "writing": part(1.33, 210.0, 200.0),
        "silent": part(1.0, 0.0, 200.0, drafts=0),
    }
    plot(found(200.0, categories), tmp_path / "out.svg")
    drawn = texts(tmp_path / "out.svg")
    for word in ("maths", "writing", "all", "2.42", "1.33", "1.88", "50%", "12%", "2.00x", "1.50x",
                 "draft drafting 3 tokens a step for model"):  # fmt: skip
        assert f"<!-- {word}" in drawn
    assert "silent" not in drawn


def test_without_a_comparison_there_is_no_speed(tmp_path: Path) -> None:
    plot(found(None, {"other": part(1.875, 300.0, None)}), tmp_path / "out.svg")
    drawn = texts(tmp_path / "out.svg")
    assert "<!-- other" in drawn
    assert "<!-- speed" not in drawn
    assert "<!-- all -->" not in drawn


def test_nothing_drafted_is_drawn_too(tmp_path: Path) -> None:
    nothing = {**found(200.0, {}), "acceptance_length": None, "acceptance_by_position": []}
    plot(nothing, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_what_can_t_be_drawn_is_said_first(tmp_path: Path) -> None:
    check_plot(tmp_path / "fine.PNG")
    with pytest.raises(InputError, match=r"\.png, \.svg"):
        check_plot(tmp_path / "out.gif")
    with pytest.raises(InputError, match="is no folder"):
        check_plot(tmp_path / "none" / "out.png")
