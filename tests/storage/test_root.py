"""Objects are created whole, exclusively, and errors say what to do."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3data.schema.errors import AlreadyExistsError, InputError, SpaceError
from eagle3data.storage.root import Root


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    if request.param == "local":
        return Root(str(tmp_path / "set"))
    return Root(f"memory://{tmp_path.name}/set")


def test_create_read_list_delete(root: Root) -> None:
    assert root.names() == []
    assert root.size("a/b") is None
    root.create("a/b", [b"one", memoryview(b"two")])
    root.create("a/c", [b""])
    assert root.read("a/b") == b"onetwo"
    assert root.read_range("a/b", 2, 5) == b"etw"
    assert root.size("a/b") == 6
    assert root.names("a") == ["b", "c"]
    root.delete("a/b")
    root.delete("a/b")
    assert root.names("a") == ["c"]


def test_creation_is_exclusive(root: Root) -> None:
    root.create("x", [b"first"])
    with pytest.raises(AlreadyExistsError):
        root.create("x", [b"second"])
    assert root.read("x") == b"first"
    root.replace("x", b"third")
    assert root.read("x") == b"third"


def test_no_leftovers(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    root.create("x", [b"1"])
    with pytest.raises(AlreadyExistsError):
        root.create("x", [b"2"])
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_full_disk_is_a_space_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpaceError, match="run the same command again"):
        Root(str(tmp_path)).create("x", [b"1"])
    assert not (tmp_path / "x").exists()
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_real_file_size_limit_is_a_space_error(tmp_path: Path) -> None:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        with pytest.raises(SpaceError):
            Root(str(tmp_path)).create("x", [bytes(5000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not (tmp_path / "x").exists()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        Root(str(tmp_path / "file")).create("x", [b""])


def test_second_writer_is_refused_and_a_dead_one_leaves_no_lock(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "half").write_bytes(b"left by a killed writer")
    with root.writer_lock():
        assert not (tmp_path / ".tmp" / "half").exists()
        with pytest.raises(InputError, match="another process is writing"), root.writer_lock():
            pass
    code = (
        "import os, sys; from eagle3data.storage.root import Root\n"
        "lock = Root(sys.argv[1]).writer_lock(); lock.__enter__(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    with root.writer_lock():
        pass


def test_unknown_protocol() -> None:
    with pytest.raises(InputError, match="can't be opened"):
        Root("nonsense://x/y")
