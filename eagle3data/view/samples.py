"""Samples: search, filter and sort the index; nothing but the index is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request
from starlette.responses import Response

from eagle3data.readers.dataset import Dataset
from eagle3data.validation.findings import Report
from eagle3data.view.pages import Pages
from eagle3data.view.parameters import NotHereError, choice, text, whole_number

SORTS = ("position", "length", "loss", "source", "findings")
_A_PAGE = 50
_MOST_SEARCHED = 200
ANY, NONE = "any", "none"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a visitor wants to see of the index."""

    search: str
    split: str
    finding: str
    shard: int | None
    sort: str
    down: bool
    page: int

    def address(self, **changes: Any) -> str:
        """The page with some of it changed; leads to the first page again unless that is named."""
        wanted = {
            "q": self.search,
            "split": self.split,
            "finding": self.finding,
            "shard": "" if self.shard is None else self.shard,
            "sort": self.sort,
            "order": "down" if self.down else "up",
            **changes,
        }
        kept = {name: value for name, value in wanted.items() if value not in ("", None)}
        return "/samples?" + urlencode(kept)


def page(pages: Pages, request: Request) -> Response:
    """`/samples`."""
    dataset = pages.opened.dataset()
    splits = sorted(filter(None, pages.opened.once("splits", _splits)))
    findings = findings_by_sample(pages.report)
    kinds = sorted({kind for found in findings.values() for kind in found})
    asked = Asked(
        search=text(request, "q")[:_MOST_SEARCHED],
        split=choice(request, "split", ["", *splits], ""),
        finding=choice(request, "finding", ["", ANY, NONE, *kinds], ""),
        shard=whole_number(request, "shard"),
        sort=choice(request, "sort", SORTS, "position"),
        down=choice(request, "order", ("up", "down"), "up") == "down",
        page=whole_number(request, "page", 1) or 1,
    )
    positions = select(dataset, asked, findings)
    count = max(1, -(-len(positions) // _A_PAGE))
    if asked.page > count:
        raise NotHereError(f"page is {asked.page}; this search has {count}.")
    shown = positions[(asked.page - 1) * _A_PAGE : asked.page * _A_PAGE]
    return pages.show(
        request,
        "samples.html",
        asked=asked,
        sorts=SORTS,
        splits=splits,
        kinds=kinds,
        report=pages.report,
        found=len(positions),
        total=len(dataset),
        tokens=int(dataset.index["length"].to_numpy()[positions].sum()),
        pages_count=count,
        rows=[_row(dataset, int(position), findings) for position in shown],
    )


def findings_by_sample(report: Report | None) -> dict[str, Counter[str]]:
    """Kinds of the findings of each sample that has any."""
    found: dict[str, Counter[str]] = {}
    for finding in report.findings if report is not None else ():
        if finding.sample_id is not None:
            found.setdefault(finding.sample_id, Counter())[finding.kind] += 1
    return found


def select(
    dataset: Dataset, asked: Asked, findings: dict[str, Counter[str]]
) -> npt.NDArray[np.int64]:
    """Positions of the samples that were asked for, in the order that was asked for."""
    index = dataset.index
    keep = np.ones(len(dataset), bool)
    if asked.search:
        keep &= _holding(index["sample_id"], asked.search) | _holding(index["source"], asked.search)
    if asked.split:
        keep &= _true(pc.equal(index["split"], pa.scalar(asked.split)))
    if asked.shard is not None:
        shard_tokens = dataset.manifest.storage.shard_tokens
        keep &= index["token_offset"].to_numpy() // shard_tokens == asked.shard
    if asked.finding:
        keep &= _with_finding(index["sample_id"], asked.finding, findings)
    positions = np.flatnonzero(keep)
    by = _sort_values(dataset, asked.sort, findings)[positions]
    order = np.argsort(by, kind="stable")
    if asked.down:
        # Equal ones stay in the set's order.
        order = len(by) - 1 - np.argsort(by[::-1], kind="stable")[::-1]
    return positions[order].astype(np.int64)


def _holding(column: pa.ChunkedArray[Any], wanted: str) -> npt.NDArray[np.bool_]:
    return _true(pc.match_substring(column, wanted, ignore_case=True))


def _true(flags: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(flags, False).to_numpy(), bool)


def _with_finding(
    ids: pa.ChunkedArray[Any], wanted: str, findings: dict[str, Counter[str]]
) -> npt.NDArray[np.bool_]:
    named = [name for name, kinds in findings.items() if wanted in kinds or wanted in (ANY, NONE)]
    has = _true(pc.is_in(ids, pa.array(named, pa.string())))
    return ~has if wanted == NONE else has


def _sort_values(
    dataset: Dataset, sort: str, findings: dict[str, Counter[str]]
) -> npt.NDArray[Any]:
    index = dataset.index
    if sort == "length":
        return np.asarray(index["length"].to_numpy())
    if sort == "loss":
        return np.asarray(index["n_loss_tokens"].to_numpy() / index["length"].to_numpy())
    if sort == "source":
        return np.asarray(index["source"].to_pylist())
    if sort == "findings":
        counts = {name: kinds.total() for name, kinds in findings.items()}
        return np.asarray([counts.get(str(name), 0) for name in index["sample_id"].to_pylist()])
    return np.arange(len(dataset))


def _splits(dataset: Dataset) -> list[str | None]:
    return [value.as_py() for value in pc.unique(dataset.index["split"])]


def _row(dataset: Dataset, position: int, findings: dict[str, Counter[str]]) -> dict[str, Any]:
    index = dataset.index
    name = dataset.sample_id(position)
    length, kept = dataset.length(position), int(index["n_loss_tokens"][position].as_py())
    return {
        "position": position,
        "sample_id": name,
        "address": "/sample?" + urlencode({"id": name}),
        "length": length,
        "loss": kept / max(length, 1),
        "shard": dataset.shard_of(position),
        "split": index["split"][position].as_py() or "",
        "source": index["source"][position].as_py(),
        "findings": sorted(findings.get(name, {})),
    }
