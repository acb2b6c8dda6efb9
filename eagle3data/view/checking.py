"""Validation: `eagle3data validate` as a process of its own, and the report that it makes.

A process, since the semantic level keeps cores busy for minutes and pages should stay quick; since
it can be stopped at any moment; and since it is then the very judge that the command line has.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO

from eagle3data.schema.errors import InputError
from eagle3data.validation.findings import Report
from eagle3data.view.settings import Settings

_MOST_SAID = 20


@dataclass(frozen=True)
class Running:
    """A check that runs: its level, since when (monotonic seconds), and what it said last."""

    level: str
    since: float
    said: str


class Checking:
    """At most one check at a time; any thread may ask."""

    def __init__(self, settings: Settings) -> None:
        """Run nothing yet."""
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._level, self._since = "", 0.0
        self._said: list[str] = []
        self._stopped = False
        self.report: Report | None = settings.report
        self.failure = ""

    @property
    def running(self) -> Running | None:
        """The check that runs now."""
        with self._lock:
            if self._process is None:
                return None
            return Running(self._level, self._since, self._said[-1] if self._said else "")

    def start(self, level: str) -> None:
        """Begin a check; while one runs it goes on instead."""
        with self._lock:
            if self._process is not None:
                return
            self._level, self._since = level, time.monotonic()
            self._said, self.failure, self._stopped = [], "", False
            self._process = subprocess.Popen(
                self._command(level), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            threading.Thread(target=self._follow, args=(self._process,), daemon=True).start()

    def stop(self) -> None:
        """End the check that runs; the report that was there before stays."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.terminate()

    def _command(self, level: str) -> list[str]:
        settings = self._settings
        words = ["validate", "--level", level, "--json"]
        if settings.model is not None:
            words += ["--model", settings.model]
        if settings.revision is not None:
            words += ["--revision", settings.revision]
        if settings.trust_remote_code:
            words.append("--trust-remote-code")
        return [sys.executable, "-m", "eagle3data.cli.main", *words, "--", settings.url]

    def _follow(self, process: subprocess.Popen[str]) -> None:
        """Until it has ended: keep what it says, then its report or why there is none."""
        listener = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
        listener.start()
        written = process.stdout.read() if process.stdout is not None else ""
        listener.join()
        process.wait()
        with self._lock:
            self._process = None
            try:
                self.report = Report.from_json(written)
            except InputError:
                said = "\n".join(self._said) or f"it ended with code {process.returncode}"
                self.failure = "It was stopped." if self._stopped else said

    def _listen(self, errors: IO[str] | None) -> None:
        for line in errors or ():
            with self._lock:
                self._said = [*self._said, line.strip()][-_MOST_SAID:]
