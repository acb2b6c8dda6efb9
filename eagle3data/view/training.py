"""Training: the curves of a run's folder, and what `evaluate` measured of its draft."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from eagle3data.schema.errors import InputError
from eagle3data.trainer.records import read_records
from eagle3data.view import charts
from eagle3data.view.pages import Pages

_SECONDS = 5
_LENGTH = "simulated_acceptance_length"

Record = dict[str, Any]


def page(pages: Pages, request: Request) -> Response:
    """`/training`."""
    run, evaluation = pages.settings.run, pages.settings.evaluation
    return pages.show(
        request,
        "training.html",
        run=run,
        part=_part(pages) if run is not None else "",
        evaluation=None if evaluation is None else _evaluation(evaluation),
    )


def part(pages: Pages, _: Request) -> Response:
    """`/training/part`: the curves as they are now."""
    return HTMLResponse(_part(pages) if pages.settings.run is not None else "")


def _part(pages: Pages) -> str:
    run = pages.settings.run or Path()
    try:
        records, trouble = read_records(run), ""
    except InputError as error:
        records, trouble = [], str(error)
    trained = [record for record in records if record["kind"] == "train"]
    held_out = [record for record in records if record["kind"] == "eval"]
    return pages.render(
        "training_part.html",
        run=str(run),
        trouble=trouble,
        trained=trained,
        held_out=held_out,
        last=trained[-1] if trained else None,
        judged=held_out[-1] if held_out else None,
        spent=sum(float(record.get("seconds", 0)) for record in trained),
        definitions=_definitions(records),
        alignment=next((one for one in records if one["kind"] == "alignment"), None),
        drawn=_charts(trained, held_out),
        again=None if _is_done(trained) else _SECONDS,
    )


def _is_done(trained: Sequence[Record]) -> bool:
    return bool(trained) and trained[-1]["step"] >= trained[-1]["total_steps"]


def _definitions(records: Sequence[Record]) -> dict[str, str]:
    first = next((one for one in records if one["kind"] == "definitions"), {})
    return {name: str(meaning) for name, meaning in first.items() if name != "kind"}


def _charts(trained: Sequence[Record], held_out: Sequence[Record]) -> list[charts.Spec]:
    """Curves by step; what is held out is judged at some steps only, and drawn on its own."""
    return [
        *_curves(trained, "in training", ""),
        *_curves(held_out, "held out", " of what is held out"),
    ]


def _curves(records: Sequence[Record], caption: str, whose: str) -> list[charts.Spec]:
    if not records:
        return []
    steps = [record["step"] for record in records]

    def drawn(title: str, series: list[charts.Series], **more: Any) -> charts.Spec:
        name = f"{title}{whose}".strip()
        return charts.lines(name, caption, steps, series, x_title="step", y_title="", **more)

    return [
        drawn("Loss", [charts.Series("loss", _column(records, "loss"))]),
        drawn("Accuracy by drafted position", _by_position(records, "accuracy"), share=True),
        drawn("Acceptance by drafted position", _by_position(records, "acceptance"), share=True),
        drawn(
            "Simulated acceptance length",
            [charts.Series("tokens a step", _column(records, _LENGTH))],
        ),
    ]


def _column(records: Sequence[Record], name: str) -> list[float | None]:
    return [_number(record.get(name)) for record in records]


def _by_position(records: Sequence[Record], name: str) -> list[charts.Series]:
    most = max(len(record.get("steps", [])) for record in records)
    return [
        charts.Series(
            f"position {at + 1}",
            [
                _number(record["steps"][at].get(name))
                if at < len(record.get("steps", []))
                else None
                for record in records
            ],
        )
        for at in range(most)
    ]


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if known else None


def _evaluation(file: Path) -> dict[str, Any]:
    """What a report of `evaluate --out` says, drawn; or why it can't be."""
    try:
        found = json.loads(file.read_bytes())
        positions = [float(rate) for rate in found["acceptance_by_position"]]
        return {
            "file": str(file),
            "found": found,
            "length": _number(found["acceptance_length"]),
            "answers": int(found["answers"]),
            "categories": {name: _category(one) for name, one in found["categories"].items()},
            "chart": charts.bars(
                "Kept, by drafted position",
                f"of {found['drafts']:,} steps in vLLM",
                [str(at) for at in range(1, len(positions) + 1)],
                [charts.Series("kept", positions)],
                x_title="drafted position",
                y_title="",
                share=True,
            ),
            "trouble": "",
        }
    except OSError as error:
        trouble = f"{file} can't be read: {error.strerror or error}."
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        trouble = (
            f"{file} is no report of `eagle3data evaluate --out` ({type(error).__name__}: {error})."
        )
    return {"trouble": trouble, "chart": None}


def _category(part: Record) -> dict[str, Any]:
    speed, without = _number(part["tokens_per_second"]), part["tokens_per_second_without_draft"]
    return {
        "answers": int(part["answers"]),
        "length": _number(part["acceptance_length"]),
        "rates": [float(rate) for rate in part["acceptance_by_position"]],
        "speed": speed,
        "without": _number(without),
    }
