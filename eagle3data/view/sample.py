"""One sample: its text with the mask, the norm of every row, and what the target's head says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.overview import indexed_sample, row_norms
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.index import list_values
from eagle3data.storage import layout
from eagle3data.validation.findings import Finding
from eagle3data.validation.row_facts import FIRST_ROWS
from eagle3data.view import charts
from eagle3data.view.pages import Pages
from eagle3data.view.parameters import NotHereError, text, whole_number
from eagle3data.view.target import foretold, pieces

WINDOW = 2048
"""Tokens that are shown at once."""
FAR = 4.0
"""A row whose norm is this many times the sample's median, or this small a part, stands out."""
_DIGITS = 4
_MOST_NAMED = 40

Norms = dict[int, npt.NDArray[np.float32]]


@dataclass(kw_only=True)
class Token:
    """One token as it is drawn.

    Attributes:
        place: its position in the sample.
        text: what it adds to the text; its id where there is no tokenizer.
        tone: classes: `k` carries loss, `nl` is nothing but a new line, `odd` stands out, `bad` is
            named by a finding.
    """

    place: int
    text: str
    tone: str


def page(pages: Pages, request: Request) -> Response:
    """`/sample?id=...`."""
    dataset = pages.opened.dataset()
    position = _position(dataset, text(request, "id"))
    facts = indexed_sample(dataset, position)
    window = _window(request, facts["length"])
    ids = list_values(dataset.index["input_ids"], position)
    mask = list_values(dataset.index["loss_mask"], position).astype(bool)
    norms, troubles = _norms(dataset, position)
    odd = odd_rows(norms)
    findings = _findings(pages, facts["sample_id"])
    words, said = _words(pages, ids[window.start : window.stop].tolist())
    return pages.show(
        request,
        "sample.html",
        facts=facts,
        n_loss=int(mask.sum()),
        tokens=_tokens(window, words, mask, odd, findings),
        rows=_rows(window, ids, norms, odd),
        window=window,
        windows=[
            (_address(facts["sample_id"], start), start, min(start + WINDOW, facts["length"]))
            for start in range(0, facts["length"], WINDOW)
        ],
        odd=[(at, why) for at, why in sorted(odd.items()) if at >= FIRST_ROWS][:_MOST_NAMED],
        n_odd=sum(at >= FIRST_ROWS for at in odd),
        far=FAR,
        said=said,
        has_text=pages.target is not None and not said,
        head=_head_address(pages, dataset, facts["sample_id"], window),
        troubles=troubles,
        findings=findings,
        norms=_chart(norms),
        layers=[_layer(layer, norms, facts["shard"]) for layer in dataset.manifest.layers],
        before=_neighbour(dataset, position - 1),
        after=_neighbour(dataset, position + 1),
    )


def head(pages: Pages, request: Request) -> Response:
    """`/sample/head?id=...`: what lm_head(norm(y)) says of each shown row, as JSON."""
    if pages.target is None:
        raise NotHereError("what the head says needs the target: start `view` with --model.")
    dataset = pages.opened.dataset()
    position = _position(dataset, text(request, "id"))
    length = dataset.length(position)
    window = _window(request, length)
    try:
        rows = _foretold(pages, dataset, position, window)
    except InputError as error:
        return JSONResponse({"said": str(error)})
    return JSONResponse({"rows": rows, "from": window.start})


def _foretold(
    pages: Pages, dataset: Dataset, position: int, window: range
) -> list[dict[str, Any] | None]:
    if pages.target is None:
        return []
    manifest = dataset.manifest
    if manifest.final_layer not in manifest.layers:
        raise InputError(
            f"layer {manifest.final_layer} was not captured, and no other is what the head reads."
        )
    ids = list_values(dataset.index["input_ids"], position).tolist()
    witness = dataset.index["witness_token"][position].as_py()
    following = [*ids[1:], *([] if witness is None else [witness])]
    stop = min(window.stop, len(following))
    target_head = pages.target.head()
    width, known = target_head.norm_weight.shape[0], target_head.vocab_size
    if width != manifest.hidden_size or max(following, default=0) >= known:
        raise InputError(
            f"the head of {pages.settings.model} reads states of {width} numbers and knows "
            f"{known:,} tokens: this set's states, of {manifest.hidden_size}, are not that model's."
        )
    states = dataset.read_array(layout.states_array(manifest.final_layer), position)
    found = foretold(
        target_head,
        states[window.start : stop],
        following[window.start : stop],
        post_norm=manifest.capture.norm_state.value == "post",
    )
    tokenizer = pages.target.tokenizer()
    names = {one: tokenizer.decode([one]) for row in found for one in (row.token, row.real)}
    rows: list[dict[str, Any] | None] = [
        {
            "token": row.token,
            "text": names[row.token],
            "share": round(row.share, _DIGITS),
            "real": row.real,
            "real_text": names[row.real],
            "real_share": round(row.real_share, 6),
            "rank": row.rank,
        }
        for row in found
    ]
    return rows + [None] * (len(window) - len(rows))


def odd_rows(norms: Norms) -> dict[int, str]:
    """Rows that are unlike the others of their sample, each with why, in a sentence.

    A row stands out where a layer holds values that are not finite, or zero throughout, or where
    its norm is far from the median of the sample's rows behind the first few. Those often are
    attention sinks, and far larger in a right set, too.
    """
    found: dict[int, str] = {}
    for layer, values in norms.items():
        usual = float(np.median(values[FIRST_ROWS:])) if len(values) > FIRST_ROWS else 0.0
        for at in np.flatnonzero(~np.isfinite(values)).tolist():
            found.setdefault(at, f"layer {layer} holds values that are not finite")
        for at in np.flatnonzero(values == 0).tolist():
            found.setdefault(at, f"layer {layer} is zero throughout")
        if not (np.isfinite(usual) and usual > 0):
            continue
        with np.errstate(invalid="ignore"):
            far = (values > FAR * usual) | (values < usual / FAR)
        for at in np.flatnonzero(far).tolist():
            factor = float(values[at]) / usual
            found.setdefault(at, f"at layer {layer} its norm is {factor:.3g} times the median")
    return found


def _position(dataset: Dataset, sample_id: str) -> int:
    try:
        return dataset.position(sample_id)
    except KeyError:
        raise NotHereError(
            f"{dataset.url} has no sample {sample_id!r} now: it may be hidden by a tombstone, or "
            "not committed yet."
        ) from None


def _window(request: Request, length: int) -> range:
    first = whole_number(request, "from", 0) or 0
    if first >= max(length, 1):
        raise NotHereError(f"from is {first}; the sample has {length} tokens.")
    return range(first, min(first + WINDOW, length))


def _norms(dataset: Dataset, position: int) -> tuple[Norms, list[str]]:
    """By layer the norm of each row, and what could not be read."""
    norms, troubles = {}, []
    for layer in dataset.manifest.layers:
        try:
            with np.errstate(all="ignore"):  # what is not finite is said, row by row
                norms[layer] = row_norms(dataset.read_array(layout.states_array(layer), position))
        except CorruptionError as error:
            troubles.append(str(error))
    return norms, troubles


def _findings(pages: Pages, sample_id: str) -> list[Finding]:
    found = pages.report.findings if pages.report is not None else []
    return [finding for finding in found if finding.sample_id == sample_id]


def _words(pages: Pages, ids: list[int]) -> tuple[list[str], str]:
    """The text of each token, and why it is its id where it is."""
    if pages.target is None:
        return [str(one) for one in ids], "Start view with --model to read the text."
    try:
        words = pieces(pages.target.tokenizer(), ids)
        manifest = pages.opened.manifest()
        if not pages.target.is_of(manifest):
            return words, "The tokenizer is not the one that made these tokens: don't trust a word."
    except InputError as error:
        return [str(one) for one in ids], str(error)
    return words, ""


def _tokens(
    window: range,
    words: list[str],
    mask: npt.NDArray[np.bool_],
    odd: dict[int, str],
    findings: list[Finding],
) -> list[Token]:
    spans = [finding.token_range for finding in findings if finding.token_range is not None]
    tokens = []
    for place, word in zip(window, words, strict=True):
        tones = ["t"]
        if mask[place]:
            tones.append("k")
        if "\n" in word and not word.strip():
            tones.append("nl")
        if place in odd:
            tones.append("odd" if place >= FIRST_ROWS else "sink")
        if any(first <= place < stop for first, stop in spans):
            tones.append("bad")
        tokens.append(Token(place=place, text=word, tone=" ".join(tones)))
    return tokens


def _rows(
    window: range, ids: npt.NDArray[Any], norms: Norms, odd: dict[int, str]
) -> dict[str, Any]:
    """What the page's script shows of the token that is pointed at."""
    some = slice(window.start, window.stop)
    return {
        "first": window.start,
        "ids": ids[some].tolist(),
        "norms": {layer: [_plain(value) for value in norms[layer][some]] for layer in norms},
        "medians": {layer: _plain(np.median(values)) for layer, values in norms.items()},
        "odd": {place: why for place, why in odd.items() if place in window},
    }


def _plain(value: Any) -> float | str:
    """A number for JSON, which knows none that are not finite."""
    return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else str(float(value))


def _chart(norms: Norms) -> charts.Spec | None:
    if not norms:
        return None
    length = len(next(iter(norms.values())))
    series = [
        charts.Series(
            f"layer {layer}",
            [float(value) if np.isfinite(value) and value > 0 else None for value in values],
        )
        for layer, values in norms.items()
    ]
    return charts.lines(
        "Norm of each row",
        "by position, logarithmic; gaps are zero or not finite",
        range(length),
        series,
        x_title="position",
        y_title="",
        log=True,
    )


def _layer(layer: int, norms: Norms, shard: int) -> dict[str, Any]:
    values = norms.get(layer)
    array = layout.states_array(layer)
    known = values is not None and bool(np.isfinite(values).any())
    return {
        "layer": layer,
        "object": layout.shard_object(array, shard),
        "min": f"{np.nanmin(values):,.5g}" if known and values is not None else "–",
        "median": f"{np.nanmedian(values):,.5g}" if known and values is not None else "–",
        "max": f"{np.nanmax(values):,.5g}" if known and values is not None else "–",
    }


def _neighbour(dataset: Dataset, position: int) -> str | None:
    if not 0 <= position < len(dataset):
        return None
    return _address(dataset.sample_id(position), 0)


def _address(sample_id: str, start: int) -> str:
    return "/sample?" + urlencode({"id": sample_id, **({"from": start} if start else {})})


def _head_address(pages: Pages, dataset: Dataset, sample_id: str, window: range) -> str | None:
    if pages.target is None or dataset.manifest.final_layer not in dataset.manifest.layers:
        return None
    return "/sample/head?" + urlencode({"id": sample_id, "from": window.start})
