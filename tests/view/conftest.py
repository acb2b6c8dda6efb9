"""Pages by Starlette's own client, and in a real browser that may speak to nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from eagle3data.view.app import create_app
from eagle3data.view.settings import Settings
from tests.browser import NAMES
from tests.view.serving import Browser, Visit, served

Client = Callable[..., TestClient]
Open = Callable[..., Visit]


@pytest.fixture(scope="session", autouse=True)
def _extra() -> None:
    """Of the extra `view` only this package comes with nothing else that tests need."""
    pytest.importorskip("chartkick", reason="the extra `view` is not installed: nothing was shown")


@pytest.fixture
def client() -> Iterator[Client]:
    """What asks the application for pages as a browser on this machine would."""
    with ExitStack() as stack:

        def make(url: str, **settings: Any) -> TestClient:
            app = create_app(Settings(url=url, **settings))
            return stack.enter_context(TestClient(app, base_url="http://127.0.0.1:8033"))

        yield make


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Headless Chromium; tests are skipped, not proven, where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is installed: no browser has opened the page")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: no browser has opened the page"
    )
    browser = Browser(playwright, path)
    yield browser
    browser.close()


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Open]:
    """Open a page of a set in a window; at the end nobody else was asked and nothing complained."""
    with ExitStack() as stack:
        visits = []

        def open_page(url: str, path: str = "/", *, width: int = 1280, **settings: Any) -> Visit:
            base = stack.enter_context(served(Settings(url=url, **settings)))
            visit = Visit(chromium, base, width)
            stack.callback(visit.close)
            visits.append(visit)
            visit.go(path)
            return visit

        yield open_page
    for visit in visits:
        assert visit.elsewhere == []
        assert visit.complaints == []


@pytest.fixture
def copied(states: str, tmp_path: Path) -> Path:
    """The real set, to be broken."""
    return Path(shutil.copytree(states, tmp_path / "set"))
