"""The data set as it is now: opened once, opened anew when its root shows that it has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.progress import Progress, Watch
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout, tombstones
from eagle3data.storage.root import Root

T = TypeVar("T")

_LOOK_AGAIN = 1.0
"""Seconds for which what a store listed counts as now; a folder is looked at every time."""


class _Made:
    """Something that is made once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_there = False
        self.value: Any = None


class Opened:
    """One data set, for pages that any number of threads make.

    A set may be repaired, extended or removed while it is looked at. What its root lists (index
    parts, tombstones, the manifest) says whether that happened, so no page shows what was.
    """

    def __init__(self, url: str) -> None:
        """Point at a URL; nothing is read yet.

        Raises:
            InputError: no file system is installed for the URL's protocol.
        """
        self.root = Root(url)
        self.url = self.root.url
        self._lock = threading.RLock()
        self._seen: tuple[object, ...] | None = None
        self._seen_at = 0.0
        self._dataset: Dataset | None = None
        self._watch: Watch | None = None
        self._looking = threading.Lock()
        self._known: dict[str, _Made] = {}

    def manifest(self) -> Manifest:
        """What the set is.

        Raises:
            InputError, ManifestError: no data set is there, or none that this version reads.
        """
        with self._lock:
            self._look()
            return self._watched().manifest

    def dataset(self) -> Dataset:
        """The set with the rows that it has now.

        Raises:
            InputError, ManifestError: as `manifest`.
            CorruptionError: an index part that can't be read.
        """
        with self._lock:
            self._look()
            if self._dataset is None:
                self._dataset = Dataset(self.root)
            return self._dataset

    def progress(self) -> tuple[Progress, Watch]:
        """How far it is, and the watch that knows it by shard.

        Raises:
            InputError, ManifestError: as `manifest`.
            CorruptionError: a plan segment that can't be read.
        """
        with self._lock:
            self._look()
            watch = self._watched()
        with self._looking:
            return watch.look(), watch

    def once(self, name: str, make: Callable[[Dataset], T]) -> T:
        """What a function makes of the set; made once, until the set changes.

        Others wait for it only where they want the same.
        """
        with self._lock:
            dataset = self.dataset()
            made = self._known.setdefault(name, _Made())
        with made.lock:
            if not made.is_there:
                made.value, made.is_there = make(dataset), True
            found: T = made.value
            return found

    def forget(self) -> None:
        """Look again, whatever was seen: a read has just failed."""
        with self._lock:
            self._seen = None
            self._seen_at = 0.0

    def _watched(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self.root)
        return self._watch

    def _look(self) -> None:
        wait = 0.0 if self.root.is_local else _LOOK_AGAIN
        if self._seen is not None and time.monotonic() - self._seen_at < wait:
            return
        listed = (
            self.root.identity(layout.GROUP),
            self.root.identity(layout.ALL_PARTS),
            tuple(self.root.names("index")),
            tuple(self.root.names(tombstones.FOLDER)),
        )
        if listed != self._seen:
            if self._seen is None or listed[0] != self._seen[0]:
                self._watch = None
            self._dataset = None
            self._known = {}
        self._seen, self._seen_at = listed, time.monotonic()
