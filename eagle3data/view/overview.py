"""Overview: what the set is, its layers on the model's depth, its health, its size explained."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.overview import Stored, overview, statistics
from eagle3data.schema.errors import Eagle3DataError, LayerError
from eagle3data.schema.layers import Numbering, from_canonical
from eagle3data.schema.manifest import Manifest
from eagle3data.validation.overview import overview_of
from eagle3data.view import charts
from eagle3data.view.depth import depth_drawing
from eagle3data.view.pages import Pages


def page(pages: Pages, request: Request) -> Response:
    """`/`."""
    facts = _facts(pages)
    manifest = pages.opened.manifest()
    return pages.show(
        request,
        "overview.html",
        facts=facts,
        statistics=pages.opened.once("statistics", statistics),
        numbering=_numbering(manifest),
        drawings=[depth_drawing(manifest, width) for width in (920, 330)],
        lengths=pages.opened.once("lengths", _lengths),
        profiles=_profiles(facts),
        report=pages.report,
    )


def prepare(pages: Pages) -> None:
    """Read what the page needs, if it can be read."""
    with suppress(Eagle3DataError, OSError):
        _facts(pages)
        pages.opened.once("statistics", statistics)


def _facts(pages: Pages) -> dict[str, Any]:
    """As `overview`; parts are read by the watch, which other pages need too, and only once."""
    progress, watch = pages.opened.progress()
    if progress.unreadable:
        return pages.opened.once("overview", overview)  # says which part, and what to do
    stored = Stored(
        shards=progress.committed.shards,
        objects=sum(commit.objects for commit in watch.commits.values()),
        bytes=progress.bytes,
    )
    return pages.opened.once("overview", lambda dataset: overview(dataset, stored))


def _numbering(manifest: Manifest) -> list[dict[str, Any]]:
    """Each captured layer, and what others call it."""
    return [
        {
            "layer": layer,
            "what": _what(manifest, layer),
            "huggingface": _named(manifest, layer, Numbering.HUGGINGFACE),
            "sglang": _named(manifest, layer, Numbering.SGLANG),
        }
        for layer in manifest.layers
    ]


def _what(manifest: Manifest, layer: int) -> str:
    if layer == 0:
        return "the embeddings"
    if layer == manifest.final_layer:
        norm = "before" if manifest.capture.norm_state.value == "pre" else "after"
        return f"leaves the last layer, {norm} the final norm"
    return f"enters decoder layer {layer}"


def _named(manifest: Manifest, layer: int, numbering: Numbering) -> str:
    try:
        return str(from_canonical([layer], numbering, manifest.final_layer)[0])
    except LayerError:
        return "no name"


def _profiles(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What each codec makes of the states, beside the one that was chosen."""
    expected = facts["arithmetic"]["expected_bytes"]
    largest = max([*expected.values(), facts["bytes"], 1])
    rows = [
        {"name": name, "bytes": count, "share": round(100 * count / largest), "stored": False}
        for name, count in expected.items()
    ]
    stored = {
        "name": f"stored, {facts['storage']['codec']}",
        "bytes": facts["bytes"],
        "share": round(100 * facts["bytes"] / largest),
        "stored": True,
    }
    return [stored, *rows]


def _lengths(dataset: Dataset) -> charts.Spec | None:
    found = overview_of(dataset.manifest, 0, dataset.index)
    if not found.length_counts:
        return None
    edges = found.length_edges
    names = [f"{low:,} to {high - 1:,}" for low, high in itertools.pairwise(edges)]
    return charts.bars(
        "Sample lengths",
        f"{len(dataset):,} samples",
        names,
        [charts.Series("samples", found.length_counts)],
        x_title="tokens of a sample",
        y_title="samples",
    )
