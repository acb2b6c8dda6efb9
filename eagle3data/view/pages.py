"""What every page is made with: templates that escape all text, the set, and what came of it."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from eagle3data.schema import words
from eagle3data.validation.findings import Report
from eagle3data.view.checking import Checking
from eagle3data.view.opened import Opened
from eagle3data.view.settings import Settings
from eagle3data.view.target import Target

_TABS = (
    ("/", "Overview"),
    ("/shards", "Shards"),
    ("/samples", "Samples"),
    ("/live", "Live"),
    ("/validation", "Validation"),
    ("/training", "Training"),
)


class Pages:
    """The state of the server, and how it answers.

    Attributes:
        settings: what is looked at.
        opened: the data set.
        checking: the validation that runs or ran.
        target: the model whose states these are; None where it was not named.
    """

    def __init__(self, settings: Settings, opened: Opened) -> None:
        self.settings, self.opened = settings, opened
        self.checking = Checking(settings)
        self.target = Target(settings) if settings.model is not None else None
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            size=words.size, duration=words.duration, rate=words.rate, spec=json.dumps
        )
        self._templates.globals.update(
            version=version("eagle3data"),
            url=opened.url,
            name=opened.url.rstrip("/").rsplit("/", 1)[-1] or opened.url,
        )

        for name in self._templates.list_templates():
            self._templates.get_template(name)  # compiled before the first visitor waits

    @property
    def report(self) -> Report | None:
        """The latest report of `validate` that is known here."""
        return self.checking.report

    def close(self) -> None:
        """End what was started."""
        self.checking.stop()

    def render(self, template: str, **facts: Any) -> str:
        """A template with facts; text in them is escaped, whatever it is."""
        return self._templates.get_template(template).render(**facts)

    def show(self, request: Request, template: str, *, status: int = 200, **facts: Any) -> Response:
        """A whole page."""
        path = request.url.path
        here = "/samples" if path == "/sample" else path
        text = self.render(template, tabs=_TABS, here=here, **facts)
        return HTMLResponse(text, status)

    def sorry(self, request: Request, heading: str, said: str, status: int) -> Response:
        """A page that says why there is no other; one that may come back looks again."""
        facts = {"heading": heading, "said": said, "again": status == 503}
        return self.show(request, "sorry.html", status=status, **facts)

    def no_such_page(self, request: Request, error: Exception) -> Response:
        """For Starlette: a path that is no page, or a method that it doesn't know."""
        status = getattr(error, "status_code", 404)
        said = f"{request.url.path} is none of the pages of this server."
        return self.sorry(request, "There is no such page", said, status)

    def our_fault(self, request: Request, error: Exception) -> Response:
        """For Starlette: an error that nobody expected; its trace goes to the terminal."""
        said = (
            f"That is a fault of eagle3data ({type(error).__name__}); the terminal that "
            "`eagle3data view` runs in shows where. The data set was only read."
        )
        return self.sorry(request, "This page could not be made", said, 500)
