"""The web application: pages, their errors in words, and what stands between them and a visitor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from eagle3data.schema.errors import Eagle3DataError
from eagle3data.validation.html.style import STYLE
from eagle3data.view import live, overview, sample, samples, shards, training, validation
from eagle3data.view.opened import Opened
from eagle3data.view.pages import Pages
from eagle3data.view.parameters import NotHereError
from eagle3data.view.security import LOOPBACK_NAMES, OwnPagesOnly, SafeHeaders, TokenRequired
from eagle3data.view.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_HERE = Path(__file__).parent
_LEAST_TO_COMPRESS = 20_000

Show = Callable[[Pages, Request], Response]


def create_app(settings: Settings, started: Callable[[], None] = lambda: None) -> Starlette:
    """The application for one data set.

    Args:
        settings: what is looked at. Without a token only requests to this machine's own names
            are answered.
        started: called once the server is about to answer.

    Raises:
        ModuleNotFoundError: chartkick, which brings Chart.js, is not installed.
    """
    pages = Pages(settings, Opened(settings.url))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # Where pandas is installed pyarrow imports it for its first numbers: before any visitor.
        pa.chunked_array([[0]]).to_numpy()
        # The first visitor finds it done, or waits for it; what is wrong the page itself will say.
        Thread(target=_prepare, args=(pages,), daemon=True).start()
        started()
        yield
        pages.close()

    return Starlette(
        routes=_routes(pages),
        middleware=_middleware(settings),
        exception_handlers={
            HTTPException: pages.no_such_page,
            Exception: pages.our_fault,
        },
        lifespan=lifespan,
    )


def _routes(pages: Pages) -> list[Route | Mount]:
    shown: dict[str, Show] = {
        "/": overview.page,
        "/shards": shards.page,
        "/samples": samples.page,
        "/sample": sample.page,
        "/sample/head": sample.head,
        "/live": live.page,
        "/live/part": live.part,
        "/validation": validation.page,
        "/validation/part": validation.part,
        "/training": training.page,
        "/training/part": training.part,
    }
    done: dict[str, Show] = {
        "/validation/start": validation.start,
        "/validation/stop": validation.stop,
    }
    charts = files("chartkick") / "django" / "static" / "chartkick"
    return [
        Route("/report.css", _report_style),
        *(Route(path, _answered(pages, show)) for path, show in shown.items()),
        *(Route(path, _answered(pages, do), methods=["POST"]) for path, do in done.items()),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
        Mount("/charts", StaticFiles(directory=str(charts))),
    ]


def _prepare(pages: Pages) -> None:
    overview.prepare(pages)
    if pages.target is not None:
        pages.target.prepare()


def _report_style(_: Request) -> Response:
    return Response(STYLE, media_type="text/css")


def _answered(pages: Pages, show: Show) -> Callable[[Request], Any]:
    """An endpoint, run in a thread; what it raises on purpose becomes a page that says it."""

    def endpoint(request: Request) -> Response:
        try:
            return show(pages, request)
        except NotHereError as error:
            return pages.sorry(request, "There is no such page", str(error), 404)
        except (Eagle3DataError, OSError, pa.ArrowException) as error:
            # It may just have been changed: the next request looks at what is there then.
            pages.opened.forget()
            return pages.sorry(request, "This can't be shown now", _words(error), 503)

    return endpoint


def _words(error: Exception) -> str:
    if isinstance(error, Eagle3DataError):
        return str(error)
    return f"The data set could not be read: {error}. It may be changing; this page looks again."


def _middleware(settings: Settings) -> list[Middleware]:
    return [
        Middleware(SafeHeaders),
        *(
            [Middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK_NAMES))]
            if settings.token is None
            else [Middleware(TokenRequired, token=settings.token)]
        ),
        Middleware(OwnPagesOnly),
        Middleware(GZipMiddleware, minimum_size=_LEAST_TO_COMPRESS, compresslevel=1),
    ]
