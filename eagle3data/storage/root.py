"""A data set's root URL: read, list, and create objects so that none is ever half there.

Local folders go straight to the file system (fsync, link, no overwrite); everything else
goes through fsspec, where exclusive creation is the store's conditional PUT.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from eagle3data.schema.errors import AlreadyExistsError, InputError, SpaceError

_TEMPORARY = ".tmp"
_WRITE_LOCK = "claims/writer.lock"

Buffer = bytes | bytearray | memoryview


class Root:
    """One root URL and the objects below it, named by `/`-separated relative paths."""

    def __init__(self, url: str) -> None:
        """Open a URL without touching it.

        Raises:
            InputError: no file system is installed for the URL's protocol.
        """
        self.url = str(url).rstrip("/")
        try:
            self.fs, self.path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise InputError(f"{self.url} can't be opened: {error}") from None
        self.is_local = isinstance(self.fs, LocalFileSystem)

    def __repr__(self) -> str:
        return f"Root({self.url!r})"

    def join(self, name: str) -> str:
        """The file system's own path of an object."""
        return f"{self.path}/{name}"

    def exists(self, name: str = "") -> bool:
        return bool(self.fs.exists(self.join(name) if name else self.path))

    def size(self, name: str) -> int | None:
        """Bytes of an object, or None where there is none."""
        try:
            return int(self.fs.size(self.join(name)))
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        """A whole object.

        Raises:
            FileNotFoundError: there is none.
        """
        data: bytes = self.fs.cat_file(self.join(name))
        return data

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)` of an object; fewer where it ends before `stop`."""
        if not self.is_local:
            data: bytes = self.fs.cat_file(self.join(name), start=start, end=stop)
            return data
        descriptor = os.open(self.join(name), os.O_RDONLY)
        try:
            return _pread(descriptor, start, stop - start)
        finally:
            os.close(descriptor)

    def names(self, folder: str = "") -> list[str]:
        """Names directly below a folder, sorted; empty where there is no folder."""
        base = self.join(folder) if folder else self.path
        try:
            found = self.fs.ls(base, detail=False, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found)

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        """Create an object from the concatenated parts, whole or not at all, never overwriting.

        Raises:
            AlreadyExistsError: an object of that name exists; it is left as it is.
            SpaceError: the disk is full; nothing of this object stays.
            InputError: the place can't be written.
        """
        if self.is_local:
            with self._local_temporary(name, parts) as temporary:
                try:
                    os.link(temporary, self.join(name))
                except FileExistsError:
                    raise AlreadyExistsError(f"{self.url}/{name} exists already.") from None
                self._sync_folder(name)
            return
        try:
            self.fs.pipe_file(self.join(name), b"".join(parts), mode="create")
        except FileExistsError:
            raise AlreadyExistsError(f"{self.url}/{name} exists already.") from None
        except OSError as error:
            if "PreconditionFailed" in repr(error) or "pre-condition" in str(error).lower():
                raise AlreadyExistsError(f"{self.url}/{name} exists already.") from None
            raise

    def replace(self, name: str, data: Buffer) -> None:
        """Put an object in place of the old one, atomically.

        Only for what can be rebuilt (`index/all.arrow`) or grows by contract (array shapes).
        """
        if self.is_local:
            with self._local_temporary(name, [data]) as temporary:
                os.replace(temporary, self.join(name))
                self._sync_folder(name)
            return
        self.fs.pipe_file(self.join(name), bytes(data))

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        if self.exists(name):
            self.fs.rm_file(self.join(name))

    def free_bytes(self) -> int | None:
        """Free bytes of the local disk; None for an object store."""
        if not self.is_local:
            return None
        folder = Path(self.path)
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    @contextmanager
    def writer_lock(self) -> Iterator[None]:
        """Keep a second local process from writing into the same data set.

        The kernel drops the lock with the process, so a killed writer leaves none behind.
        Leftovers of its half-written objects are removed here. Object stores have no such
        lock: there, one writer at a time is the caller's duty.

        Raises:
            InputError: another process holds it, or the folder can't be written.
        """
        if not self.is_local:
            yield
            return
        with exclusive_lock(Path(self.join(_WRITE_LOCK)), self.url):
            shutil.rmtree(self.join(_TEMPORARY), ignore_errors=True)
            yield

    @contextmanager
    def _local_temporary(self, name: str, parts: Sequence[Buffer]) -> Iterator[str]:
        temporary = self.join(f"{_TEMPORARY}/{uuid.uuid4().hex}")
        try:
            os.makedirs(os.path.dirname(temporary), exist_ok=True)
            os.makedirs(os.path.dirname(self.join(name)), exist_ok=True)
            with open(temporary, "xb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        except OSError as error:
            raise unwritable(self.url, error) from None
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)

    def _sync_folder(self, name: str) -> None:
        descriptor = os.open(os.path.dirname(self.join(name)), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def require_reachable(self) -> None:
        """Ask the store for the root once, so that a store that can't be reached says so.

        Raises:
            InputError: no such bucket, no credentials, no connection, no permission.
        """
        try:
            self.fs.exists(self.path)
        except _store_errors(self.fs) as error:
            raise InputError(f"{self.url} can't be reached: {error}") from None


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


@contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file; the kernel drops the lock with the process, so none is left behind.

    Args:
        path: made if it is not there; its folder too.
        what: named in the error.

    Raises:
        InputError: another process holds it, or it can't be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise unwritable(what, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is writing {what}. Wait for it, or stop it; what it committed "
                "stays."
            ) from None
        yield
    finally:
        os.close(descriptor)


def unwritable(what: object, error: OSError) -> SpaceError | InputError:
    """The error for a place that could not be written: full, or something else."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return SpaceError(
            f"no space left at {what} ({error.strerror}). What is committed stays whole: free some "
            "space, or move it, and run the same command again to continue."
        )
    return InputError(f"{what} can't be written: {error.strerror or error}.")


def _pread(descriptor: int, start: int, length: int) -> bytes:
    """`pread` until `length` bytes or the end: one call returns at most 2 GiB."""
    data = bytearray()
    while len(data) < length:
        piece = os.pread(descriptor, length - len(data), start + len(data))
        if not piece:
            break
        if not data and len(piece) == length:
            return piece
        data += piece
    return bytes(data)
