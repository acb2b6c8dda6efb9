"""Clean sets of every nature: real states of other texts, and of targets of random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3data.cli.main import app
from eagle3data.schema.axis import TokenAxis
from eagle3data.validation.findings import Report, Verdict
from eagle3data.validation.validate import validate
from tests.faults import random_models
from tests.faults.capture import Captured, capture, write
from tests.faults.natures import NATURES, tokens

Of = Callable[[str], list[Captured]]
LONG = TokenAxis(shard_tokens=4096, chunk_tokens=16)


def written(folder: Path, model: Path, samples: list[Captured]) -> str:
    longest = max(len(sample["ids"]) for sample in samples)
    if longest > 1024:
        return str(write(folder, model, samples, axis=LONG))
    return str(write(folder, model, samples))


@pytest.mark.parametrize("nature", list(NATURES))
def test_no_nature_is_accused(
    nature: str, captured_nature: Of, smollm2: Path, tmp_path: Path
) -> None:
    url = written(tmp_path / "set", smollm2, captured_nature(nature))
    report = validate(url, "semantic", str(smollm2))
    assert report.findings == []
    if nature != "three samples":  # of 88 tokens each: too few to be sure of anything
        assert report.verdict is Verdict.CLEAN, report.undecided


@pytest.mark.parametrize("home", ["german", "short chats", "prose"])
def test_one_sample_of_another_nature_is_not_accused(
    home: str, captured_nature: Of, smollm2: Path, tmp_path: Path
) -> None:
    """A set of one kind of text with a single stranger of each other kind."""
    strangers = [captured_nature(nature)[1] for nature in NATURES if nature not in (home, "long")]
    report = validate(
        written(tmp_path / "set", smollm2, captured_nature(home) + strangers),
        "semantic",
        str(smollm2),
    )
    assert report.findings == []
    assert report.ok, report.undecided


def test_all_natures_together_are_not_accused(
    captured_nature: Of, captured: list[Captured], smollm2: Path, tmp_path: Path
) -> None:
    natures = [nature for nature in NATURES if nature != "long"]
    samples = [*captured, *(one for nature in natures for one in captured_nature(nature)[:12])]
    report = validate(written(tmp_path / "set", smollm2, samples), "semantic", str(smollm2))
    assert report.findings == []
    assert report.ok, report.undecided


ODD = (
    "!" * 150,
    "0" * 60 + "1" * 60 + "7" * 60,
    "the the the the the the the the the the the the the the the the the the the the the the",
    "U29tZSBiYXNlNjQgdGhhdCBzYXlzIG5vdGhpbmcgYXQgYWxsLCBidXQgbG9va3Mgb2RkLg== aGVsbG8gd29ybGQ=",
    "🙂🙃😉 🚀🌍 ✅❌ ⚠️ ½ ⅓ ∑∏√∞ ≈≠≤≥ ←↑→↓ ♠♥♦♣ ☀☁☂ ♫♪ © ® ™ § ¶ † ‡ • … ‰ € £ ¥ ¢ 🙂🙃😉 🚀🌍",
    "\n\n\n\n\n\n\n\n\n\n\n\n    \t\t\t\t\t        \n\n\n\n\n\n\n\n\n\n x",
)


def test_odd_texts_in_a_plain_set_are_not_accused(
    captured: list[Captured], tokenizer: Any, target: Any, smollm2: Path, tmp_path: Path
) -> None:
    """One token over and over, digits, base64, symbols, white space."""
    both = [tokens(tokenizer, text) for text in ODD]
    odd = capture(target, [ids for ids, _ in both], [mask for _, mask in both], [2, 15, 27, 30])
    report = validate(written(tmp_path / "set", smollm2, captured + odd), "semantic", str(smollm2))
    assert report.findings == []
    assert report.ok, report.undecided


@pytest.mark.parametrize("make", [random_models.llama, random_models.deepseek])
def test_random_weights_are_undetermined(
    make: Callable[[Path, Path], Any], smollm2: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """Neither clean nor faulty, and the exit code says so."""
    model, folder = make(tmp_path / "model", smollm2), tmp_path / "model"
    layers = [2, 6, 9, 12]
    both = [tokens(tokenizer, text) for text in (NATURES["code"]() + NATURES["prose"]())]
    samples = capture(model, [ids for ids, _ in both], [mask for _, mask in both], layers)
    url = str(write(tmp_path / "set", folder, samples, layers=layers))
    report: Report = validate(url, "semantic", str(folder))
    assert report.findings == []
    assert report.verdict is Verdict.UNDETERMINED
    assert any("random" in sentence for sentence in report.undecided)
    result = CliRunner().invoke(
        app, ["validate", url, "--level", "semantic", "--model", str(folder)]
    )
    assert result.exit_code == 3


def test_exit_codes(captured_nature: Of, smollm2: Path, tmp_path: Path) -> None:
    samples = captured_nature("german")
    url = written(tmp_path / "set", smollm2, samples)
    arguments = ["validate", "--level", "semantic", "--model", str(smollm2)]
    assert CliRunner().invoke(app, [*arguments, url]).exit_code == 0
    swapped = [{**sample, "states": samples[at - 1]["states"]} for at, sample in enumerate(samples)]
    for sample in swapped:
        length = min(len(sample["ids"]), len(sample["states"][2]))
        sample["ids"], sample["mask"] = sample["ids"][:length], sample["mask"][:length]
        sample["states"] = {layer: rows[:length] for layer, rows in sample["states"].items()}
    url = written(tmp_path / "swapped", smollm2, swapped)
    assert CliRunner().invoke(app, [*arguments, url]).exit_code == 1
    assert CliRunner().invoke(app, [*arguments, str(tmp_path / "none")]).exit_code == 2
