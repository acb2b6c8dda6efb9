"""Objects that are not on a local disk: ranged reads, and creation that is whole and exclusive.

`open_store` picks the one way for a protocol: `s3_store` for S3, `hub_store` for the Hugging Face
Hub, fsspec for the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from fsspec.implementations.memory import MemoryFileSystem

from eagle3data.schema.errors import AlreadyExistsError, InputError
from eagle3data.storage.local import Buffer
from eagle3data.storage.retry import with_retries

Bytes = npt.NDArray[np.uint8]

_CREATE_EXCLUSIVELY = {"memory", "gs", "gcs"}
"""Of fsspec's file systems, those whose `mode="create"` is one step that fails if it is late."""

_memory_creation = threading.Lock()


class ObjectUpload(Protocol):
    """One object being created; nobody sees it before `commit`."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append buffers; they may be changed after the call.

        Raises:
            SpaceError, InputError: the store can't be written.
        """

    def commit(self) -> str:
        """Give it its name, whole and exclusively; returns its identity.

        Raises:
            AlreadyExistsError: the name is taken; what is there stays as it is.
            SpaceError, InputError: the store can't be written.
        """

    def replace(self) -> None:
        """Put it in place of what has the name (see `Root.replace`).

        Raises:
            SpaceError, InputError: the store can't be written.
        """

    def abort(self) -> None:
        """Drop what was not committed; after `commit` this does nothing."""


class ObjectStore:
    """The objects that one fsspec file system holds, named by the file system's own paths.

    Every method may be called from any thread. What a connection loses is asked for again.
    """

    def __init__(self, fs: Any, url: str) -> None:
        """Keep a file system, without touching it; `url` is named in errors."""
        self.fs = fs
        self.url = url

    def exists(self, path: str) -> bool:
        """Whether there is an object of that name now, whatever was listed before."""
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int:
        """Bytes of an object.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store can't be read.
        """
        return int(_again(lambda: self.fs.info(path))["size"])

    def identity(self, path: str) -> str | None:
        """What tells an object from another that had the same name; None where there is none."""
        try:
            info = _again(lambda: self.fs.info(path))
        except FileNotFoundError:
            return None
        facts = ("generation", "ETag", "etag", "size", "created", "mtime", "updated")
        return ":".join(str(info[fact]) for fact in facts if info.get(fact) is not None)

    def read(self, path: str) -> bytes:
        """A whole object.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store can't be read.
        """
        data: bytes = _again(lambda: self.fs.cat_file(path))
        return data

    def read_range(self, path: str, start: int, stop: int) -> Bytes:
        """Bytes `[start, stop)` of an object; fewer where the store has no more, asked twice.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store can't be read.
        """
        data = b""
        for _ in range(2):
            data = _again(lambda: self.fs.cat_file(path, start=start, end=stop))
            if len(data) == stop - start:
                break
        return np.frombuffer(data, np.uint8)

    def replace(self, path: str, data: Buffer) -> None:
        """Put an object in place of what has the name, atomically.

        Raises:
            SpaceError, InputError: the store can't be written.
        """
        try:
            _again(lambda: self.fs.pipe_file(path, bytes(data)))
        except OSError as error:
            raise InputError(f"{self.url}: {path} can't be written: {error}") from None

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error.

        Raises:
            OSError: the store refuses.
        """
        try:
            _again(lambda: self.fs.rm_file(path))
        except (FileNotFoundError, KeyError):  # memory:// raises KeyError
            return

    def upload(self, path: str) -> ObjectUpload:
        """Start an object that is written piece by piece and appears whole, or never.

        Raises:
            InputError: the file system can't create objects exclusively.
        """
        if not protocols(self.fs) & _CREATE_EXCLUSIVELY:
            raise InputError(
                f"{self.url} can't be written safely: its file system has no way to create an "
                "object only if there is none. Write to a local folder, s3:// or gs://, and copy."
            )
        return _BufferedUpload(self, path)


class RemoteObject:
    """One object of a store, to read ranges of from any thread.

    Attributes:
        size: bytes when it was opened.
    """

    def __init__(self, store: ObjectStore, path: str) -> None:
        """Ask for the object's size.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store can't be read.
        """
        self._store = store
        self._path = path
        self.size = store.size(path)

    def will_read(self, start: int, stop: int) -> None:
        """Do nothing: a store begins when it is asked."""

    def read(self, start: int, stop: int) -> Bytes:
        """Bytes `[start, stop)`, read-only; fewer where the object has become shorter.

        Raises:
            OSError: the store can't deliver them.
        """
        stop = min(stop, self.size)
        if start >= stop:
            return np.empty(0, np.uint8)
        return self._store.read_range(self._path, start, stop)

    def read_all(self, bounds: Sequence[tuple[int, int]]) -> list[Bytes]:
        """As `read` for each pair of bounds, one after the other."""
        return [self.read(start, stop) for start, stop in bounds]


class _BufferedUpload:
    """An object of a file system that takes it in one call, so it is held in memory until then."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path
        self._data = bytearray()

    def write(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            self._data += part

    def commit(self) -> str:
        name = f"{self._store.url}: {self._path}"
        data, self._data = bytes(self._data), bytearray()
        try:
            with self._alone():
                self._store.fs.pipe_file(self._path, data, mode="create")
        except FileExistsError:
            raise AlreadyExistsError(f"{name} exists already.") from None
        except OSError as error:
            raise InputError(f"{name} can't be written: {error}") from None
        return str(self._store.identity(self._path))

    def replace(self) -> None:
        data, self._data = bytes(self._data), bytearray()
        self._store.replace(self._path, data)

    def _alone(self) -> AbstractContextManager[object]:
        """memory:// looks first and creates then, so its writers take turns."""
        in_memory = isinstance(self._store.fs, MemoryFileSystem)
        return _memory_creation if in_memory else nullcontext()

    def abort(self) -> None:
        self._data = bytearray()


def open_store(fs: Any, url: str) -> ObjectStore:
    """The store behind an fsspec file system that is not local; touches nothing."""
    if protocols(fs) & {"s3", "s3a"}:
        from eagle3data.storage.s3_store import S3Store

        return S3Store(fs, url)
    if "hf" in protocols(fs):
        from eagle3data.storage.hub_store import HubStore

        return HubStore(fs, url)
    return ObjectStore(fs, url)


def protocols(fs: Any) -> set[str]:
    """The protocols that an fsspec file system answers to."""
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)


def _again(action: Any) -> Any:
    """One call of fsspec, tried again when the connection was lost."""
    lost = (ConnectionError, TimeoutError)
    return with_retries(action, errors=lost, is_transient=lambda _: True)
