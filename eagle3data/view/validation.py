"""The page of validation: what runs, and the report as `validate --html` draws it."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from eagle3data.validation.findings import Level
from eagle3data.validation.html.elements import join
from eagle3data.validation.html.page import report_sections
from eagle3data.view.pages import Pages
from eagle3data.view.parameters import choice

_SECONDS = 1

_MEANS = {
    Level.QUICK: "index, plan and the sizes of objects: seconds",
    Level.FULL: "and every byte, against its checksum: as long as reading it takes",
    Level.SEMANTIC: "do states belong to their tokens: a sample of samples is probed",
    Level.ALL: "every byte, and every probe",
}


def page(pages: Pages, request: Request) -> Response:
    """`/validation`."""
    return pages.show(
        request,
        "validation.html",
        part=_part(pages),
        levels=[(level.value, _MEANS[level]) for level in Level],
        model=pages.settings.model,
    )


def part(pages: Pages, _: Request) -> Response:
    """`/validation/part`: what runs, or the report."""
    return HTMLResponse(_part(pages))


def start(pages: Pages, request: Request) -> Response:
    """POST `/validation/start?level=...`."""
    level = choice(request, "level", [level.value for level in Level], Level.QUICK.value)
    pages.checking.start(level)
    return RedirectResponse("/validation", 303)


def stop(pages: Pages, _: Request) -> Response:
    """POST `/validation/stop`."""
    pages.checking.stop()
    return RedirectResponse("/validation", 303)


def _part(pages: Pages) -> str:
    running, report = pages.checking.running, pages.report
    return pages.render(
        "validation_part.html",
        running=running,
        seconds=0.0 if running is None else time.monotonic() - running.since,
        again=_SECONDS,
        failure=pages.checking.failure,
        report=report,
        sections="" if report is None else join(report_sections(report)),
    )
