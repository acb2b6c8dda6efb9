"""Objects in a local folder: created whole, exclusively and durably, in this order.

Temporary file, fsync, link to its name (which fails if the name is taken), fsync of the folder;
folders made on the way are synced into theirs. What a killed process leaves are temporary files
under its own name, which the next writer sweeps away.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle3data.schema.errors import AlreadyExistsError, InputError, SpaceError
from eagle3data.storage.owner import Owner

TEMPORARY = ".tmp"
Buffer = bytes | bytearray | memoryview

_PIECE_BYTES = 16 << 20
_BUFFERS_A_CALL = 512
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class LocalUpload:
    """One file on its way to a name; nobody sees it before `commit`."""

    def __init__(self, root: Path, name: str, url: str) -> None:
        """Begin a temporary file.

        Raises:
            SpaceError, InputError: the place is full or can't be written.
        """
        self._root, self._name, self._url = root, name, url
        self._temporary = root / TEMPORARY / Owner.current().token / uuid.uuid4().hex
        try:
            make_folder(root)
            # Below it nothing has to outlive a power cut.
            self._temporary.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._temporary, "xb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise unwritable(url, error) from None
        self.nbytes = 0
        self._started = 0

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append buffers; the disk begins to write at once, so that the end waits for little.

        Raises:
            SpaceError, InputError: the place is full or can't be written.
        """
        descriptor = self._file.fileno()
        try:
            self.nbytes += write_all(descriptor, parts)
        except OSError as error:
            raise unwritable(self._url, error) from None
        if self.nbytes - self._started >= _PIECE_BYTES:
            # Only advice: an error of the disk shows in fsync.
            length = self.nbytes - self._started
            _libc.sync_file_range(descriptor, self._started, length, _SYNC_FILE_RANGE_WRITE)
            self._started = self.nbytes

    def commit(self) -> str:
        """Make it durable and give it its name; returns its identity (see `Root.identity`).

        Raises:
            AlreadyExistsError: the name is taken; what is there stays as it is.
            SpaceError, InputError: the place is full or can't be written.
        """
        target = self._root / self._name
        try:
            os.fsync(self._file.fileno())
            make_folder(target.parent)
            os.link(self._temporary, target)
            sync_folder(target.parent)
            return identity(os.fstat(self._file.fileno()))
        except FileExistsError:
            raise AlreadyExistsError(f"{self._url}/{self._name} exists already.") from None
        except OSError as error:
            raise unwritable(self._url, error) from None
        finally:
            self.abort()

    def replace(self) -> None:
        """Make it durable and put it in place of what has the name."""
        target = self._root / self._name
        try:
            os.fsync(self._file.fileno())
            make_folder(target.parent)
            os.replace(self._temporary, target)
            sync_folder(target.parent)
        except OSError as error:
            raise unwritable(self._url, error) from None
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop what was not committed."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def write_all(descriptor: int, parts: Sequence[Buffer]) -> int:
    """`writev` until everything is written; the bytes."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    total = 0
    while views:
        written = os.writev(descriptor, views[:_BUFFERS_A_CALL])
        total += written
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if written:
            views[0] = views[0][written:]
    return total


def identity(found: os.stat_result) -> str:
    """What tells this file from another that had the same name."""
    return f"{found.st_ino}:{found.st_mtime_ns}:{found.st_size}"


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; each is durable before anything is put in it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        # The name that is taken is not the object's own.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep_temporary(root: Path) -> list[str]:
    """Remove the temporary files of processes that are gone; the tokens of those processes.

    Call it while this process writes nothing: its own folder goes too when it is empty.
    """
    swept = []
    folder = root / TEMPORARY
    with suppress(OSError):
        (folder / Owner.current().token).rmdir()
    for place in folder.iterdir() if folder.is_dir() else ():
        owner = Owner.from_token(place.name)
        if owner is not None and owner.is_gone:
            swept.append(place.name)
            shutil.rmtree(place, ignore_errors=True)
    return swept


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
