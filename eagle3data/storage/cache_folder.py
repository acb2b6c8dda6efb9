"""A folder on a local disk that keeps copies of what lies far away, up to a number of bytes.

Any number of processes share it, and any of them may be killed at any moment. Every byte is
counted under one lock before it is written, so together they never pass the limit; a file that is
being written is locked by its writer, so one that isn't was left behind. Nothing is flushed:
whoever reads a copy compares its checksums, and fetches it again if it is damaged.

account                        bytes that are spoken for, and the lock that guards them
being-written/<id>             files on their way to their name
<set>/<generation>/users       held by every process that uses the generation
<set>/<generation>/<name>      the copies
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle3data.schema.errors import InputError
from eagle3data.storage.local import Buffer, write_all
from eagle3data.storage.mapped import LocalObject

logger = logging.getLogger(__name__)

_WRITING = "being-written"
_USERS = "users"


class CacheFolder:
    """The copies of one generation of one data set, in a folder that others may use too.

    Attributes:
        limit: bytes that all copies in the folder, of whichever set, may have together.
        full_disk: what the disk said when it took no more; None while it does. Then nothing is
            put any more, and what is there is still read.
    """

    def __init__(self, root: str | Path, limit: int, *, set_name: str, generation: str) -> None:
        """Take up the folder; drop what killed processes left, and generations nobody uses.

        Args:
            root: the folder; made if it isn't there.
            limit: bytes.
            set_name: of the data set, as a file's name.
            generation: of the data set, as a file's name.

        Raises:
            InputError: it can't be made, written or locked.
        """
        self.limit = limit
        self.full_disk: str | None = None
        self._root = Path(root).expanduser()
        self._place = self._root / set_name / generation
        try:
            (self._root / _WRITING).mkdir(parents=True, exist_ok=True)
            with self._account() as account:
                # Under the lock, so that nobody takes it for one that is not used.
                self._place.mkdir(parents=True, exist_ok=True)
                users = os.open(self._place / _USERS, os.O_CREAT | os.O_RDWR, 0o644)
                fcntl.flock(users, fcntl.LOCK_SH)
                weakref.finalize(self, os.close, users)
                if self._clear() or account.is_new:
                    account.used = sum(size for _, size in _files(self._root))
        except OSError as error:
            raise InputError(
                f"the cache folder {root} can't be used: {error.strerror or error}. Give a folder "
                "on a local disk that this process may write."
            ) from None

    def used(self) -> int:
        """Bytes that are spoken for."""
        with self._account() as account:
            return account.used

    def open(self, name: str) -> LocalObject | None:
        """A copy, or None where there is none."""
        try:
            return LocalObject(str(self._place / name))
        except FileNotFoundError:
            return None

    def put(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Keep a copy, unless there is one of that name; whether there is one now.

        A disk that is full, or fails, is told once, and never the caller's trouble.
        """
        nbytes = sum(memoryview(part).nbytes for part in parts)
        path = self._place / name
        if self.full_disk is not None:
            return False
        try:
            if path.exists():
                return True
            begun = self._begin(nbytes)
            if begun is None:
                return False
            try:
                begun.write(parts)
            finally:
                with self._account() as account:
                    account.used -= begun.finish(path)
        except OSError as error:
            self._stop(error)
            return False
        return True

    def _begin(self, nbytes: int) -> _Begun | None:
        """A file of so many bytes that are spoken for; None where there is no room."""
        with self._account() as account:
            if account.used + nbytes > self.limit:
                return None
            # Counted before it is there: a kill in between leaves too much, never too little.
            account.used += nbytes
            try:
                return _Begun(self._root / _WRITING, nbytes)
            except OSError:
                account.used -= nbytes
                raise

    def discard(self, name: str) -> None:
        """Drop a copy; one that is not there is no error."""
        path = self._place / name
        with suppress(FileNotFoundError), self._account() as account:
            size = path.stat().st_size
            path.unlink()
            account.used -= size

    def names(self) -> list[str]:
        """Names of all copies of this generation, sorted."""
        start = len(str(self._place)) + 1
        found = (path[start:] for path, _ in _files(self._place))
        return sorted(name for name in found if name != _USERS)

    def _stop(self, error: OSError) -> None:
        self.full_disk = error.strerror or str(error)
        logger.warning(
            "the cache in %s takes no more (%s): what is not in it yet is read from its data set "
            "each time. Free some space, or give fewer cache_bytes.",
            self._root,
            self.full_disk,
        )

    def _clear(self) -> bool:
        """Drop files without a writer and generations without a user; whether there were any."""
        left = [path for path in (self._root / _WRITING).iterdir() if _is_free(path)]
        for path in left:
            path.unlink()
        siblings = [path for path in self._place.parent.iterdir() if path != self._place]
        stale = [path for path in siblings if _is_free(path / _USERS)]
        for path in stale:
            shutil.rmtree(path)
            logger.info("dropped from the cache: %s, which no process uses any more", path)
        return bool(left or stale)

    @contextmanager
    def _account(self) -> Iterator[_Account]:
        descriptor = os.open(self._root / "account", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield _Account(descriptor)
        finally:
            os.close(descriptor)


class _Account:
    """The bytes that are spoken for, while the lock is held.

    Attributes:
        is_new: nobody has counted yet.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        text = os.pread(descriptor, 32, 0)
        self.is_new = not text.isdigit()
        self._used = 0 if self.is_new else int(text)

    @property
    def used(self) -> int:
        return self._used

    @used.setter
    def used(self, value: int) -> None:
        self._used = max(0, value)
        os.pwrite(self._descriptor, b"%032d" % self._used, 0)


class _Begun:
    """A file that is being written, locked by this process until it has its name."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        """Take the room now, so that a full disk shows before anything is copied."""
        self._path = folder / uuid.uuid4().hex
        self._nbytes = nbytes
        self._is_whole = False
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            os.posix_fallocate(self._descriptor, 0, nbytes)
        except OSError:
            self.finish(self._path)
            raise

    def write(self, parts: Sequence[Buffer]) -> None:
        """Write all of it."""
        write_all(self._descriptor, parts)
        self._is_whole = True

    def finish(self, path: Path) -> int:
        """Give it its name, or drop it; bytes that are free by it. Under the account's lock."""
        try:
            if not self._is_whole:
                self._path.unlink()
                return self._nbytes
            path.parent.mkdir(parents=True, exist_ok=True)
            replaced = path.stat().st_size if path.exists() else 0
            self._path.replace(path)
            return replaced
        finally:
            os.close(self._descriptor)


def _is_free(path: Path) -> bool:
    """Whether no process holds the lock of a file."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """Paths and bytes of the copies below a folder, and of those on their way."""
    for folder, _, names in os.walk(root):
        for name in names:
            if name in {"account", _USERS}:
                continue
            path = f"{folder}/{name}"
            with suppress(FileNotFoundError):
                yield path, os.stat(path).st_size
