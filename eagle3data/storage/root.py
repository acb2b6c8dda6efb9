"""A data set's root URL: read, list, and create objects so that none is ever half there.

Local folders go straight to the file system (see `local`), everything else goes through an
object store's conditional PUT (see `object_store`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import fsspec
import numpy as np
import numpy.typing as npt
from fsspec.implementations.local import LocalFileSystem

from eagle3data.schema.errors import InputError
from eagle3data.storage.local import Buffer, LocalUpload, identity, sweep_temporary
from eagle3data.storage.mapped import LocalObject
from eagle3data.storage.object_store import RemoteObject, open_store

LOCAL_THREADS = 4
REMOTE_THREADS = 16


class Upload(Protocol):
    """One object being created; nobody sees it before `commit`."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append buffers."""

    def commit(self) -> str:
        """Give it its name, exclusively; returns its identity (see `Root.identity`)."""

    def replace(self) -> None:
        """Put it in place of what has the name, atomically (see `Root.replace`)."""

    def abort(self) -> None:
        """Drop it."""


class StoredObject(Protocol):
    """One object being read."""

    @property
    def size(self) -> int:
        """Bytes."""

    def will_read(self, start: int, stop: int) -> None:
        """Say which bytes are read soon; may do nothing."""

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes `[start, stop)`; fewer where the object ends before `stop`."""

    def read_all(self, bounds: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.uint8]]:
        """As `read` for each pair of bounds."""


class Root:
    """One root URL and the objects below it, named by `/`-separated relative paths."""

    def __init__(self, url: str) -> None:
        """Open a URL without touching it.

        Raises:
            InputError: no file system is installed for the URL's protocol.
        """
        protocol, separator, place = str(url).partition("://")
        if separator and not place.strip("/") and protocol != "file":
            raise InputError(
                f"{url} names no place: expected a URL such as {protocol}://bucket/set."
            )
        self.url = str(url).rstrip("/")
        try:
            self.fs, self.path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise InputError(f"{self.url} can't be opened: {error}") from None
        self.is_local = isinstance(self.fs, LocalFileSystem)
        self._store = None if self.is_local else open_store(self.fs, self.url)

    def __repr__(self) -> str:
        return f"Root({self.url!r})"

    @property
    def threads(self) -> int:
        """How many reads or writes at a time serve this place well."""
        return min(LOCAL_THREADS, os.cpu_count() or 1) if self.is_local else REMOTE_THREADS

    def join(self, name: str) -> str:
        """The file system's own path of an object."""
        return f"{self.path}/{name}"

    def exists(self, name: str = "") -> bool:
        if self._store is not None and name:
            return self._store.exists(self.join(name))
        return bool(self.fs.exists(self.join(name) if name else self.path))

    def size(self, name: str) -> int | None:
        """Bytes of an object, or None where there is none."""
        try:
            if self._store is None:
                return os.stat(self.join(name)).st_size
            return self._store.size(self.join(name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def identity(self, name: str) -> str | None:
        """What tells an object from another that had the same name; None where there is none.

        Sizes and checksums can be equal in two attempts at a shard; this never is.
        """
        if self._store is not None:
            return self._store.identity(self.join(name))
        try:
            return identity(os.stat(self.join(name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> bytes:
        """A whole object.

        Raises:
            FileNotFoundError: there is none.
        """
        if self._store is None:
            return Path(self.join(name)).read_bytes()
        return self._store.read(self.join(name))

    def open(self, name: str) -> StoredObject:
        """An object to read ranges of, from any thread.

        Raises:
            FileNotFoundError: there is none.
        """
        if self._store is None:
            return LocalObject(self.join(name))
        return RemoteObject(self._store, self.join(name))

    def names(self, folder: str = "") -> list[str]:
        """Names directly below a folder, sorted; empty where there is no folder."""
        base = self.join(folder) if folder else self.path
        try:
            if self._store is None:
                return sorted(os.listdir(base))
            found = self.fs.ls(base, detail=False, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found)

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of every object below a folder, by name; empty where there is no folder.

        A store lists a thousand objects in the time of one request.
        """
        base = self.join(folder)
        if self._store is None:
            return {path[len(self.path) + 1 :]: size for path, size in _files_below(base)}
        self.fs.invalidate_cache()
        found = self.fs.find(base, detail=True)
        return {path[len(self.path) + 1 :]: int(entry["size"]) for path, entry in found.items()}

    def begin(self, name: str) -> Upload:
        """Start an object that is written piece by piece and appears whole, or never.

        Raises:
            SpaceError, InputError: the place is full or can't be written.
        """
        if self._store is None:
            return LocalUpload(Path(self.path), name, self.url)
        return self._store.upload(self.join(name))

    def create(self, name: str, parts: Sequence[Buffer]) -> str:
        """Create an object from the concatenated parts, whole or not at all, never overwriting.

        Returns:
            Its identity.

        Raises:
            AlreadyExistsError: an object of that name exists; it is left as it is.
            SpaceError: the disk is full; nothing of this object stays.
            InputError: the place can't be written.
        """
        upload = self.begin(name)
        try:
            upload.write(parts)
        except BaseException:
            upload.abort()
            raise
        return upload.commit()

    def replace(self, name: str, data: Buffer) -> None:
        """Put an object in place of the old one, atomically.

        Only for what can be rebuilt (`index/all.arrow`), grows by contract (array shapes) or
        belongs to this process alone (its claims).
        """
        if self._store is not None:
            self._store.replace(self.join(name), data)
            return
        upload = self.begin(name)
        try:
            upload.write([data])
        except BaseException:
            upload.abort()
            raise
        upload.replace()

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        if self._store is None:
            Path(self.join(name)).unlink(missing_ok=True)
        else:
            self._store.delete(self.join(name))

    def sweep(self) -> list[str]:
        """Remove what killed local writers left half written; returns their tokens."""
        return sweep_temporary(Path(self.path)) if self.is_local else []

    def room(self) -> tuple[int, int] | None:
        """Free and total bytes of the local disk; None for an object store."""
        if not self.is_local:
            return None
        folder = Path(self.path)
        while not folder.exists():
            folder = folder.parent
        usage = shutil.disk_usage(folder)
        return usage.free, usage.total

    def require_reachable(self) -> None:
        """Ask the store for the root once, so that a store that can't be reached says so.

        Raises:
            InputError: no such bucket, no credentials, no connection, no permission.
        """
        try:
            self.fs.exists(self.path)
        except _store_errors(self.fs) as error:
            raise InputError(f"{self.url} can't be reached: {error}") from None


def _files_below(folder: str) -> Iterator[tuple[str, int]]:
    """Paths and bytes of files; folders that go away meanwhile are empty."""
    for path, _, names in os.walk(folder):
        for name in names:
            file = f"{path}/{name}"
            try:
                yield file, os.stat(file).st_size
            except FileNotFoundError:
                continue


def _store_errors(fs: Any) -> tuple[type[Exception], ...]:
    """What a file system raises when its store can't be reached."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & {"s3", "s3a"}:
        from botocore.exceptions import BotoCoreError, ClientError

        return OSError, BotoCoreError, ClientError
    if protocols & {"http", "https"}:
        from aiohttp import ClientError as HttpError

        return OSError, HttpError
    return (OSError,)
