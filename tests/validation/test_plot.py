"""What a set's figure shows is what its index, `stats` and the report say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data import open_dataset
from eagle3data.cli.stats import stats
from eagle3data.readers.dataset import Dataset
from eagle3data.readers.overview import statistics
from eagle3data.schema.errors import InputError
from eagle3data.validation.findings import Report
from eagle3data.validation.measured import (
    ByShift,
    LayerMeasured,
    Measured,
    RmsByPosition,
    Witnesses,
)
from eagle3data.validation.plot import draw
from eagle3data.validation.validate import validate
from tests.support import random_samples, small_manifest, write_set


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    manifest = small_manifest()
    url = write_set(
        tmp_path_factory.mktemp("drawn") / "set", random_samples(40, manifest), manifest
    )
    return open_dataset(url)


@pytest.fixture(scope="module")
def report(dataset: Dataset) -> Report:
    """A quick report, with numbers put in as the semantic level would have measured them."""
    found = validate(dataset.url, level="quick")
    found.measured = Measured(
        layers=[_layer(2, best=0), _layer(6, best=0), _layer(9, best=0), _layer(12, best=0)],
        witness=Witnesses(samples=40, agreeing=39, difference=[0.01 * at for at in range(101)]),
        probed=40,
    )
    return found


def _layer(layer: int, best: int) -> LayerMeasured:
    identity = ByShift(shifts=[-1, 0, 1], shares=[0.1, 0.9, 0.01 * layer], best=best, tested=400)
    foretold = ByShift(shifts=[0, 1, 2], shares=[0.02, 0.5, 0.03], best=1, tested=300)
    low, median, high = ([value * layer] * 3 for value in (1.0, 2.0, 3.0))
    rms = RmsByPosition(start=[0, 1, 3], stop=[1, 3, 9], low=low, median=median, high=high)
    return LayerMeasured(
        layer=layer, identity=identity, identity_chance=0.03, next_token=foretold, rms=rms
    )


def _panels(figure: Any) -> dict[str, Any]:
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def _stairs(axes: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    values, edges, _ = axes.patches[0].get_data()
    return values, edges


def test_the_index_is_drawn(dataset: Dataset) -> None:
    facts, panels = statistics(dataset), _panels(draw(dataset))
    assert list(panels) == ["sample lengths", "share of tokens with loss", "norms by layer"]
    lengths = dataset.index["length"].to_numpy()
    counts, edges = _stairs(panels["sample lengths"])
    assert counts.sum() == len(dataset) == 40
    np.testing.assert_array_equal(counts, np.histogram(lengths, edges)[0])
    assert panels["sample lengths"].lines[0].get_xdata()[0] == facts["length"]["median"]
    shares, edges = _stairs(panels["share of tokens with loss"])
    kept = dataset.index["n_loss_tokens"].to_numpy() / lengths
    np.testing.assert_array_equal(shares, np.histogram(kept, edges)[0])
    assert shares.sum() == 40


def test_norms_are_those_of_stats(dataset: Dataset) -> None:
    layers = statistics(dataset)["layers"]
    axes = _panels(draw(dataset))["norms by layer"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "6", "9", "12"]
    median, (low, high), _ = axes.containers[0]
    assert list(median.get_ydata()) == [row["rms"]["median"] for row in layers]
    assert list(low.get_ydata()) == pytest.approx([row["rms"]["p10"] for row in layers])
    assert list(high.get_ydata()) == pytest.approx([row["rms"]["p90"] for row in layers])
    largest = next(line for line in axes.lines if line.get_label() == "largest value")
    assert list(largest.get_ydata()) == [row["absmax"] for row in layers]
    assert axes.get_yscale() == "log"


def test_a_report_is_drawn(dataset: Dataset, report: Report) -> None:
    panels = _panels(draw(dataset, report))
    agreement = panels["agreement by position"]
    heights = [[round(bar.get_height(), 6) for bar in bars] for bars in agreement.containers]
    assert heights == [[10.0, 90.0, 2.0], [2.0, 50.0, 3.0]]
    middles = [[bar.get_x() + bar.get_width() / 2 for bar in bars] for bars in agreement.containers]
    assert [[round(place) for place in row] for row in middles] == [[-1, 0, 1], [0, 1, 2]]
    rows = panels["row norms along the samples"]
    assert [list(line.get_ydata()) for line in rows.lines] == [
        [2.0 * layer] * 3 for layer in (2, 6, 9, 12)
    ]
    assert list(rows.lines[0].get_xdata()) == [1.0, 2.5, 6.5]
    witness = panels["last rows against the engine's own token"]
    assert list(witness.lines[0].get_ydata()) == report.measured.witness.difference  # type: ignore[union-attr]
    assert [text.get_text() for text in witness.texts] == ["39 of 40 agree"]
    assert "level quick: clean" in draw(dataset, report)._suptitle.get_text()  # type: ignore[attr-defined]


def test_the_command(
    dataset: Dataset, report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = tmp_path / "report.json", tmp_path / "set.png"
    saved.write_text(report.to_json())
    stats(dataset.url, plot=out, report=saved)
    assert out.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr()
    assert f"drawn: {out}" in shown.err.replace("\n", "")
    assert "rms median" in shown.out
    with pytest.raises(InputError, match="give --plot"):
        stats(dataset.url, report=saved)
    with pytest.raises(InputError, match=r"\.svg"):
        stats(dataset.url, plot=tmp_path / "set.gif")
    saved.write_text(saved.read_text().replace(dataset.url, "/elsewhere"))
    with pytest.raises(InputError, match="report of /elsewhere"):
        stats(dataset.url, plot=out, report=saved)


def test_an_empty_set_is_drawn_too(tmp_path: Path) -> None:
    manifest = small_manifest()
    url = write_set(tmp_path / "empty", [], manifest)
    panels = _panels(draw(open_dataset(url)))
    assert not panels["sample lengths"].patches
