"""Shards: a map of all of them, coloured by one thing at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.progress import Progress, Watch
from eagle3data.readers.progress_words import why_stale
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.words import size
from eagle3data.storage.tombstones import list_tombstones
from eagle3data.validation.findings import Report
from eagle3data.view.pages import Pages
from eagle3data.view.parameters import choice, whole_number

COLOURS = ("state", "fill", "norms", "findings")
_A_PAGE = 5000
_FEW = 80
"""So many shards are drawn large, with their numbers."""
_STEPS = 9
"""Tones of a scale, from 0 on."""
_WIDEST = math.log(2.0)
"""Norms that differ by this factor from the set's median have the strongest tone."""


@dataclass(kw_only=True)
class Cell:
    """One shard on the map.

    Attributes:
        shard: its number.
        tone: class of its colour.
        said: what is known of it, in a sentence.
    """

    shard: int
    tone: str
    said: str


def page(pages: Pages, request: Request) -> Response:
    """`/shards`."""
    colour = choice(request, "colour", COLOURS, "state")
    progress, watch = pages.opened.progress()
    layers = watch.manifest.layers
    layer = int(choice(request, "layer", [str(one) for one in layers], str(layers[-1])))
    total = max(len(watch.planned), *(shard + 1 for shard in (*watch.commits, -1)))
    first = whole_number(request, "first", 0) or 0
    shown = range(first, min(first + _A_PAGE, total))
    states = _states(pages, progress, watch, total)
    tone = _tones(pages, colour, layer, watch, states)
    cells = [
        Cell(shard=shard, tone=tone(shard), said=_said(shard, states[shard], watch))
        for shard in shown
    ]
    return pages.show(
        request,
        "shards.html",
        colours=COLOURS,
        colour=colour,
        layers=layers,
        layer=layer,
        cells=cells,
        large=total <= _FEW,
        total=total,
        first=first,
        after=first + _A_PAGE if first + _A_PAGE < total else None,
        before=max(0, first - _A_PAGE) if first else None,
        states=Counter(states),
        legend=_legend(colour, pages.report),
        steps=range(_STEPS),
    )


def _states(pages: Pages, progress: Progress, watch: Watch, total: int) -> list[str]:
    """Of each shard: `committed`, `hidden`, `unreadable`, `claimed`, `stale` or `planned`."""
    states = ["planned"] * total
    for claim in progress.claims:
        if claim.state.name.isdigit() and int(claim.state.name) < total:
            states[int(claim.state.name)] = "stale" if why_stale(claim) else "claimed"
    for shard in watch.commits:
        states[shard] = "committed"
    for tombstone in list_tombstones(pages.opened.root):
        if tombstone.shard in watch.commits:
            states[tombstone.shard] = "hidden"
    for shard in progress.unreadable:
        if shard < total:
            states[shard] = "unreadable"
    return states


def _said(shard: int, state: str, watch: Watch) -> str:
    words = {
        "hidden": "committed, with hidden samples",
        "unreadable": "its index part can't be read",
        "claimed": "somebody works on it",
        "stale": "claimed by somebody who is gone",
        "planned": "not begun",
    }
    parts = [f"shard {shard}", words.get(state, state)]
    commit, planned = watch.commits.get(shard), watch.planned.get(shard)
    if commit is not None:
        fill = commit.tokens / watch.manifest.storage.shard_tokens
        parts += [f"{commit.samples:,} samples", f"{commit.tokens:,} tokens"]
        parts += [f"{fill:.0%} full", size(commit.bytes)]
    elif planned is not None:
        parts += [f"{planned.samples:,} samples and {planned.tokens:,} tokens planned"]
    return ", ".join(parts)


def _tones(
    pages: Pages, colour: str, layer: int, watch: Watch, states: list[str]
) -> Callable[[int], str]:
    """From a shard to its class."""
    if colour == "fill":
        room = watch.manifest.storage.shard_tokens
        return lambda shard: _step(watch.commits, shard, lambda commit: commit.tokens / room)
    if colour == "norms":
        norms = pages.opened.once("shard norms", shard_norms)[layer]
        return lambda shard: _step(norms, shard, lambda value: _departure(value, norms))
    if colour == "findings":
        return _by_findings(pages.report, watch)
    return lambda shard: f"s-{states[shard]}"


def _step(known: Mapping[int, Any], shard: int, share: Callable[[Any], float]) -> str:
    if shard not in known:
        return "s-planned"
    return f"t{min(max(round(share(known[shard]) * (_STEPS - 1)), 0), _STEPS - 1)}"


def _departure(value: float, norms: Mapping[int, float]) -> float:
    """0 at half the median of all shards, 1/2 at it, 1 at twice."""
    usual = float(np.median(list(norms.values())))
    if not (value > 0 and usual > 0):
        return 0.0
    return 0.5 + 0.5 * math.log(value / usual) / _WIDEST


def shard_norms(dataset: Dataset) -> dict[int, dict[int, float]]:
    """By layer and shard, the root mean square of all its states, from the index."""
    manifest: Manifest = dataset.manifest
    lengths = dataset.index["length"].to_numpy()
    shards = dataset.index["token_offset"].to_numpy() // manifest.storage.shard_tokens
    squares = np.asarray(dataset.index["rms"].to_pylist(), float).reshape(
        -1, len(manifest.layers)
    )  # [samples, layers]
    squares = squares**2 * lengths[:, None]
    numbers, rows = np.unique(shards, return_inverse=True)
    tokens = np.bincount(rows, lengths, minlength=len(numbers))
    return {
        layer: dict(
            zip(
                numbers.tolist(),
                np.sqrt(np.bincount(rows, squares[:, slot], len(numbers)) / tokens).tolist(),
                strict=True,
            )
        )
        for slot, layer in enumerate(manifest.layers)
    }


def _by_findings(report: Report | None, watch: Watch) -> Callable[[int], str]:
    if report is None:
        return lambda _: "s-planned"
    errors = {finding.shard for finding in report.errors}
    warned = {finding.shard for finding in report.findings} - errors
    everywhere = bool(errors & {None}) and len(errors) == 1

    def tone(shard: int) -> str:
        if shard in errors or everywhere:
            return "s-unreadable"
        if shard in warned:
            return "s-stale"
        return "s-clean" if shard in watch.commits else "s-planned"

    return tone


def _legend(colour: str, report: Report | None) -> str:
    if colour == "fill":
        return "how full of tokens: pale is empty, strong is full"
    if colour == "norms":
        return (
            "root mean square of all states of a shard: pale is half the set's median or less, "
            "strong twice or more"
        )
    if colour == "findings" and report is None:
        return "Nothing was validated yet: run it in Validation, or name a report with --report."
    if colour == "findings":
        return "red has errors, amber warnings, green was looked at and has none of its own"
    return ""
