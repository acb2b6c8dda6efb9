"""What a long check has read so far: one line a shard, so that a killed run can be continued.

A line counts only for the shard as it was when it was read: its key covers the index part, the
samples that are not hidden, and the identity (inode, time, size; or the store's ETag) of every
object. A line that was cut off is no line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from eagle3data.schema.digest import json_digest
from eagle3data.schema.errors import InputError
from eagle3data.storage.local import unwritable
from eagle3data.storage.root import Root
from eagle3data.validation.findings import Finding

_HEADER = '{"eagle3data": "validate full", "version": 1}'


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What reading one shard found.

    Attributes:
        findings: what is wrong in it.
        bytes_read: stored bytes of its samples.
        measured: samples whose statistics were taken again.
        uncompared: its hidden samples keep it from being compared with what was committed.
    """

    findings: list[Finding] = field(default_factory=list)
    bytes_read: int = 0
    measured: int = 0
    uncompared: bool = False


def shard_key(part: str, sample_ids: Sequence[str], identities: Sequence[str | None]) -> str:
    """What tells this state of a shard from any other.

    Args:
        part: digest of its index part.
        sample_ids: of the samples that are read.
        identities: of its objects; see `Root.identity`.
    """
    return json_digest([part, list(sample_ids), list(identities)])


def default_file(root: Root) -> Path:
    """Where the check of a data set is noted unless the user names a file: the cache folder.

    Not beside the data: a set can be read-only, and a check leaves it as it is.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    url = str(root.fs.unstrip_protocol(root.path))
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return base / "eagle3data" / name / "validate-full.jsonl"


class ProgressFile:
    """The open file of one run.

    Attributes:
        path: where it lies.
        since: when the oldest line that was recalled was written, in seconds since 1970.
        failure: why nothing can be noted any more; None while all is well.
    """

    def __init__(self, path: Path, file: IO[str], lines: dict[int, dict[str, Any]]) -> None:
        """Use `open_progress`."""
        self.path = path
        self.since: float | None = None
        self.failure: str | None = None
        self._file = file
        self._lines = lines

    def recall(self, shard: int, key: str) -> ShardResult | None:
        """What an earlier run found in this shard, if the shard is as it was."""
        line = self._lines.get(shard)
        if line is None or line["key"] != key:
            return None
        try:
            result = ShardResult(
                findings=[Finding.from_dict(finding) for finding in line["findings"]],
                bytes_read=int(line["bytes_read"]),
                measured=int(line["measured"]),
                uncompared=bool(line["uncompared"]),
            )
            at = float(line["at"])
        except (KeyError, TypeError, ValueError):
            return None  # of another version: the shard is read again
        self.since = at if self.since is None else min(self.since, at)
        return result

    def note(self, shard: int, key: str, result: ShardResult) -> None:
        """Write down what was found in a shard; it outlives the process at once.

        A disk that is full must not end a check of many hours: `failure` says so instead.
        """
        line = {
            "shard": shard,
            "key": key,
            "findings": [finding.as_dict() for finding in result.findings],
            "bytes_read": result.bytes_read,
            "measured": result.measured,
            "uncompared": result.uncompared,
            "at": time.time(),
        }
        if self.failure is None:
            try:
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()
            except OSError as error:
                self.failure = f"{self.path} can't be written: {error.strerror or error}"


@contextmanager
def open_progress(path: Path, *, afresh: bool = False) -> Iterator[ProgressFile]:
    """Take up a progress file, or begin one; gone again once the check is done.

    Args:
        path: of the file.
        afresh: forget what is in it.

    Raises:
        InputError: it can't be written, is something else, or another check uses it.
    """
    with _opened(path) as file:
        text = file.read()
        lines = _lines(text, path)
        if afresh:
            file.truncate(0)
            text, lines = "", {}
        # What is there stays as it is, whatever kills this run; a line that was cut off ends here.
        file.write(_HEADER + "\n" if not text else "" if text.endswith("\n") else "\n")
        file.flush()
        yield ProgressFile(path, file, lines)
        path.unlink(missing_ok=True)


def why_unusable(path: Path) -> str | None:
    """Why `open_progress` would refuse a file; None where it would not."""
    try:
        with _opened(path) as file:
            text = file.read()
            _lines(text, path)
            if not text:
                path.unlink()  # nothing is to stay of having asked
    except InputError as error:
        return str(error)
    return None


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file, at its beginning, for this process alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise unwritable(path, error) from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InputError(f"{path} is no ordinary file; name another with --resume.")
        _lock(file, path)
        file.seek(0)
        yield file


def _lock(file: IO[str], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"another check notes its progress in {path}. Wait for it, or give this one a file of "
            "its own with --resume FILE."
        ) from None


def _lines(text: str, path: Path) -> dict[int, dict[str, Any]]:
    """The last whole line of each shard."""
    header, *rest = text.splitlines() or [_HEADER]
    if header != _HEADER:
        raise InputError(
            f"{path} is not the progress of a check. Name another file with --resume, or remove it."
        )
    found: dict[int, dict[str, Any]] = {}
    for row in rest:
        try:
            line = json.loads(row)
            found[int(line["shard"])] = {**line, "key": str(line["key"])}
        except (ValueError, KeyError, TypeError):
            continue  # the run was killed while it wrote this
    return found
