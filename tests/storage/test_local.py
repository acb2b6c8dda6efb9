"""Local objects appear whole, once, and in an order that a power cut can't harm."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from eagle3data.schema.errors import AlreadyExistsError, InputError, SpaceError
from eagle3data.storage.local import TEMPORARY, LocalUpload
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root
from tests.storage.processes import with_mounts
from tests.storage.trace import Call, parse, traced

NAME = "hidden_states/2/c/0/0"


def begin(folder: Path, name: str = NAME) -> LocalUpload:
    return LocalUpload(folder, name, str(folder))


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def objects(folder: Path) -> dict[str, bytes]:
    """What a reader may see."""
    return {name: data for name, data in files(folder).items() if not name.startswith(TEMPORARY)}


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    upload = begin(tmp_path)
    upload.write([b"one", memoryview(b"two"), b"", bytearray(b"three")])
    upload.write([])
    assert objects(tmp_path) == {}
    identity = upload.commit()
    assert files(tmp_path) == {NAME: b"onetwothree"}
    assert Root(str(tmp_path)).identity(NAME) == identity


def test_many_parts_and_long_ones(tmp_path: Path) -> None:
    """More buffers than one writev takes, more bytes than are written before the disk begins."""
    parts: list[bytes | memoryview] = [bytes([number % 251]) * 7 for number in range(3000)]
    parts += [memoryview(os.urandom(17 << 20)), b"end"]
    upload = begin(tmp_path)
    upload.write(parts)
    upload.commit()
    assert files(tmp_path) == {NAME: b"".join(parts)}


def test_nothing_is_left_after_an_abort(tmp_path: Path) -> None:
    upload = begin(tmp_path)
    upload.write([b"half"])
    upload.abort()
    upload.abort()
    assert files(tmp_path) == {}
    assert Root(str(tmp_path)).sweep() == []
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def test_of_two_uploads_of_one_name_the_first_to_commit_wins(tmp_path: Path) -> None:
    first, second = begin(tmp_path), begin(tmp_path)
    second.write([b"second"])
    first.write([b"first"])
    second.commit()
    with pytest.raises(AlreadyExistsError, match=NAME):
        first.commit()
    assert files(tmp_path) == {NAME: b"second"}


def test_identities_tell_equal_objects_apart(tmp_path: Path) -> None:
    root, seen = Root(str(tmp_path)), set()
    for _ in range(5):
        seen.add(root.create("x", [b"same"]))
        root.delete("x")
    assert len(seen) == 5
    assert root.identity("x") is None


def test_a_replacement_is_whole(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    before = root.create("x", [b"old"])
    upload = root.begin("x")
    upload.write([b"newer"])
    assert root.read("x") == b"old"
    upload.replace()
    assert files(tmp_path) == {"x": b"newer"}
    assert root.identity("x") != before


# Processes that end, and those that don't.

WRITER = """
import sys
from pathlib import Path
from eagle3data.storage.local import LocalUpload
from eagle3data.storage.owner import Owner

upload = LocalUpload(Path(sys.argv[1]), "x", sys.argv[1])
upload.write([b"half of it"])
print(Owner.current().token, flush=True)
sys.stdin.read()
"""


@contextmanager
def half_way(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has written half of an object, and the token of its temporary files."""
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process, _line(process.stdout)
        process.kill()


def _line(stream: IO[str] | None) -> str:
    return stream.readline().strip() if stream else ""


def test_a_killed_writers_files_are_swept_and_a_living_ones_stay(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    mine = begin(tmp_path, "mine")
    mine.write([b"mine"])
    with half_way(tmp_path) as (living, kept), half_way(tmp_path) as (dead, left):
        dead.send_signal(signal.SIGKILL)
        assert dead.wait() == -signal.SIGKILL
        assert living.poll() is None
        own = Owner.current().token
        assert {path.name for path in (tmp_path / TEMPORARY).iterdir()} == {own, kept, left}
        assert sorted(files(tmp_path).values()) == [b"half of it", b"half of it", b"mine"]
        assert root.sweep() == [left]
        assert {path.name for path in (tmp_path / TEMPORARY).iterdir()} == {own, kept}
    assert root.sweep() == [kept]
    mine.commit()
    assert files(tmp_path) == {"mine": b"mine"}


def test_what_another_machine_left_is_not_swept(tmp_path: Path) -> None:
    own = Owner.current()
    others = [
        Owner("elsewhere", own.boot, own.namespace, own.pid, own.started).token,
        Owner(own.host, "another-boot", own.namespace, own.pid, 1).token,
        Owner(own.host, own.boot, own.namespace + 1, 2**22 + 1, 1).token,
        "something else",
    ]
    for token in others:
        (tmp_path / TEMPORARY / token).mkdir(parents=True)
    reused = Owner(own.host, own.boot, own.namespace, own.pid, own.started + 1).token
    (tmp_path / TEMPORARY / reused).mkdir()
    assert Root(str(tmp_path)).sweep() == [reused]
    assert {path.name for path in (tmp_path / TEMPORARY).iterdir()} == set(others)


# Places that can't be written.

FILLS_UP = """
import sys
from eagle3data.schema.errors import SpaceError
from eagle3data.storage.root import Root

root = Root(sys.argv[1])
root.create("small", [b"committed"])
upload = root.begin("large")
try:
    for _ in range(64):
        upload.write([bytes(100_000)])
except SpaceError as error:
    upload.abort()
    print(error)
print(root.read("small"), root.size("large"), root.names(".tmp"))
root.create("next", [bytes(500_000)])
print(root.size("next"))
"""
READ_ONLY = """
import sys
from eagle3data.schema.errors import InputError
from eagle3data.storage.root import Root

root = Root(sys.argv[1])
for name in ("new", "old"):
    try:
        root.create(name, [b"x"])
    except InputError as error:
        print(error)
print(root.read("old"))
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """A real one, of a megabyte; what was committed stays, and what was half there gives way."""
    done = with_mounts(
        f"mount -t tmpfs -o size=1m none '{tmp_path}'",
        [sys.executable, "-c", FILLS_UP, str(tmp_path)],
    )
    said, kept, size = done.stdout.splitlines()
    assert "no space left" in said, done.stderr
    assert str(tmp_path) in said
    assert kept.startswith("b'committed' None")
    assert size == "500000"


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    root.create("small", [b"committed"])
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        with pytest.raises(SpaceError, match="no space left"):
            root.create("large", [bytes(600), bytes(600)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert files(tmp_path) == {"small": b"committed"}


def test_a_read_only_folder(tmp_path: Path) -> None:
    """A read-only mount: the superuser ignores modes."""
    (tmp_path / "old").write_bytes(b"committed")
    done = with_mounts(
        f"mount --bind '{tmp_path}' '{tmp_path}' && mount -o remount,bind,ro '{tmp_path}'",
        [sys.executable, "-c", READ_ONLY, str(tmp_path)],
    )
    new, old, kept = done.stdout.splitlines()
    for said in (new, old):
        assert re.search("can't be written: Read-only file system", said), done.stderr
    assert kept == "b'committed'"


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        Root(str(tmp_path / "file")).create("x", [b""])
    upload = begin(tmp_path, "file/x")
    with pytest.raises(InputError, match="can't be written: Not a directory"):
        upload.commit()
    assert files(tmp_path) == {"file": b""}


# The order in which things become durable.

TWO_SHARDS = """
import sys
from tests.support import random_samples, small_manifest, write_set

manifest = small_manifest(codec=sys.argv[2])
write_set(sys.argv[1], random_samples(4, manifest), manifest)
"""


class Trace:
    """What a writer asked of the kernel."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls

    def named(self, *names: str) -> list[Call]:
        return [call for call in self.calls if call.name in names]

    def appeared(self) -> dict[Path, Call]:
        """The call that gave each object its name (the last one, where it was replaced)."""
        return {call.paths[1]: call for call in self.named("link", "rename")}

    def synced(self, path: Path, after: int, before: int | None = None) -> bool:
        """Whether a file or folder was synced, from begin to end, between two lines."""
        return any(
            call.paths == [path] and call.start > after and (before is None or call.stop < before)
            for call in self.named("fsync")
        )

    def last_write(self, path: Path) -> int:
        """Line on which the last change of a file had been made."""
        changes = self.named("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate")
        return max(call.stop for call in changes if call.paths[:1] == [path])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace]:
    folder = tmp_path_factory.mktemp("trace")
    url = folder / "new" / "set"
    return url, Trace(traced(TWO_SHARDS, folder / "log", url, "none"))


def parts(url: Path, trace: Trace) -> dict[int, Call]:
    return {
        int(path.stem): call
        for path, call in trace.appeared().items()
        if path.parent == url / "index" and path.stem.isdigit()
    }


def test_every_file_is_synced_before_it_gets_its_name(written: tuple[Path, Trace]) -> None:
    url, trace = written
    given = trace.named("link", "rename")
    assert {path for call in given for path in call.paths[1:]} >= {
        url / name for name in objects(url)
    }
    for call in given:
        temporary = call.paths[0]
        assert temporary.parent.parent == url / TEMPORARY
        assert trace.synced(temporary, trace.last_write(temporary), call.start), call


def test_every_folder_is_synced_after_it_got_an_object(written: tuple[Path, Trace]) -> None:
    _, trace = written
    for call in trace.named("link", "rename"):
        assert trace.synced(call.paths[1].parent, call.stop), call


def test_every_new_folder_is_synced_before_it_gets_an_object(written: tuple[Path, Trace]) -> None:
    url, trace = written
    made = {call.paths[-1]: call for call in trace.named("mkdir")}
    assert {url.parent, url, url / "index", (url / NAME).parent} <= set(made)
    for path, call in trace.appeared().items():
        for folder in path.parents:
            if folder in made:
                assert trace.synced(folder.parent, made[folder].stop, call.start), call


def test_the_index_part_comes_when_all_else_is_durable(written: tuple[Path, Trace]) -> None:
    url, trace = written
    appeared, index_parts = trace.appeared(), parts(url, trace)
    assert len(index_parts) > 1
    for shard, part in index_parts.items():
        needed = [
            path
            for path in appeared
            if path.match(f"c/{shard}/0")
            or path.match(f"c/{shard}")
            or path.match(f"plan/{shard:04d}.arrow")
        ]
        assert len(needed) == 7, "four layers, ids, mask and the plan"
        for path in needed:
            assert trace.synced(path.parent, appeared[path].stop, part.start), path
    gathered = appeared[url / "index/all.arrow"]
    assert all(part.stop < gathered.start for part in index_parts.values())


def test_a_call_that_is_interrupted_by_another_threads_is_put_together() -> None:
    log = [
        '7  link("/t/a", "/o/a" <unfinished ...>',
        "8  fsync(5</t/b>) = 0",
        '8  mkdir("/o", 0777) = -1 EEXIST (File exists)',
        "7  <... link resumed>) = 0",
        '7  writev(6</t/c>, [{iov_base=""..., iov_len=3}], 1) = 3',
        "7  +++ exited with 0 +++",
    ]
    found = [(call.name, call.start, call.stop) for call in parse(log)]
    assert found == [("fsync", 1, 1), ("link", 0, 3), ("writev", 4, 4)]
    assert parse(log)[1].paths == [Path("/t/a"), Path("/o/a")]
