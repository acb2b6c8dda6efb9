"""A served page, and what a browser did with it."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn

from eagle3data.view.app import create_app
from eagle3data.view.settings import Settings

T = TypeVar("T")


@contextmanager
def served(settings: Settings) -> Iterator[str]:
    """The application on a free port of loopback; yields its address without a slash."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        config = uvicorn.Config(create_app(settings), log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        server.should_exit = True
        thread.join()


class Browser:
    """Chromium under playwright, in a thread of its own: its event loop would stand in the way of
    whatever else of a test wants one."""

    def __init__(self, playwright: Any, path: str) -> None:
        self._thread = ThreadPoolExecutor(1, "chromium")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._started = self.do(lambda: playwright.sync_playwright().start())
        self._chromium = self.do(
            lambda: self._started.chromium.launch(executable_path=path, args=arguments)
        )

    def do(self, work: Callable[[], T]) -> T:
        """Have something done in the browser's thread."""
        return self._thread.submit(work).result()

    def window(self, width: int) -> Any:
        """A new private window of that width."""
        viewport = {"width": width, "height": 900}
        return self.do(lambda: self._chromium.new_context(viewport=viewport).new_page())

    def close(self) -> None:
        """End it."""
        self.do(self._chromium.close)
        self.do(self._started.stop)
        self._thread.shutdown()


class Visit:
    """A window, and what it asked for and complained of since it was opened."""

    def __init__(self, browser: Browser, base: str, width: int) -> None:
        self._browser, self._page, self.base = browser, browser.window(width), base
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        page = self._page
        browser.do(lambda: page.on("request", self._asked))
        browser.do(lambda: page.on("console", lambda said: self.complaints.append(said.text)))
        browser.do(lambda: page.on("pageerror", lambda error: self.complaints.append(str(error))))

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((f"{self.base}/", "data:")):
            self.elsewhere.append(request.url)

    def do(self, work: Callable[[Any], T]) -> T:
        """Do something with playwright's page, and wait until what it led to is drawn."""

        def and_wait() -> T:
            result = work(self._page)
            self._page.wait_for_load_state("networkidle")
            return result

        return self._browser.do(and_wait)

    def go(self, path: str) -> None:
        """Open a path of the server and wait until it is drawn."""
        self.do(lambda page: page.goto(self.base + path))

    def close(self) -> None:
        """Close the window."""
        self._browser.do(self._page.context.close)

    def fact(self, name: str) -> str:
        """The exact value of a number on the page."""
        return str(self.do(lambda page: page.locator(f"#fact-{name}").get_attribute("value")))

    def text(self, selector: str) -> str:
        """What can be read in the first such element."""
        return str(self.do(lambda page: page.locator(selector).first.inner_text()))

    def count(self, selector: str) -> int:
        """How many such elements there are."""
        return int(self.do(lambda page: page.locator(selector).count()))

    def click(self, selector: str) -> None:
        """Click the first such element."""
        self.do(lambda page: page.locator(selector).first.click())

    def wait_for(self, selector: str) -> None:
        """Until such an element can be seen."""
        self._browser.do(lambda: self._page.locator(selector).first.wait_for(timeout=60_000))

    def fits(self) -> bool:
        """Whether nothing is wider than the window."""
        root = "document.documentElement"
        return bool(
            self.do(lambda page: page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"))
        )

    def drawn_charts(self) -> int:
        """Canvases that Chart.js has drawn on."""
        all_of_them = "[...document.querySelectorAll('canvas[data-chart]')]"
        drawn = f"{all_of_them}.filter(at => Chart.getChart(at)).length"
        return int(self.do(lambda page: page.evaluate(drawn)))


def facts(html: str) -> dict[str, str]:
    """Exact values of the numbers on a page, by name."""
    return dict(re.findall(r'<data id="fact-([\w-]+)" value="([^"]*)"', html))
