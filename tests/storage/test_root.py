"""One way to read, list and create objects, on a disk and elsewhere; errors say what to do."""

from __future__ import annotations

import errno
import os
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
    assert root.identity("a/b") is None
    root.create("a/b", [b"one", memoryview(b"two")])
    root.create("a/c", [b""])
    assert root.read("a/b") == b"onetwo"
    assert root.size("a/b") == 6
    assert root.exists("a/b")
    assert root.names("a") == ["b", "c"]
    root.delete("a/b")
    root.delete("a/b")
    assert root.names("a") == ["c"]
    assert not root.exists("a/b")
    with pytest.raises(FileNotFoundError):
        root.read("a/b")


def test_sizes_of_all_below(root: Root) -> None:
    assert root.sizes("a") == {}
    root.create("a/b/0", [b"one"])
    root.create("a/c", [b"three"])
    root.create("b/d", [b""])
    assert root.sizes("a") == {"a/b/0": 3, "a/c": 5}
    root.create("a/e/f/g", [b"x"])
    root.delete("a/c")
    assert root.sizes("a") == {"a/b/0": 3, "a/e/f/g": 1}


def test_ranges(root: Root) -> None:
    root.create("x", [b"onetwo"])
    found = root.open("x")
    assert found.size == 6
    assert found.read(2, 5).tobytes() == b"etw"
    assert found.read(0, 6).tobytes() == b"onetwo"
    assert found.read(4, 9).tobytes() == b"wo"
    with pytest.raises(FileNotFoundError):
        root.open("y")


def test_an_object_that_is_written_piece_by_piece(root: Root) -> None:
    upload = root.begin("x")
    upload.write([b"one"])
    upload.write([b"two", b"three"])
    assert not root.exists("x")
    assert upload.commit() == root.identity("x")
    assert root.read("x") == b"onetwothree"
    dropped = root.begin("y")
    dropped.write([b"half"])
    dropped.abort()
    assert not root.exists("y")


def test_creation_is_exclusive(root: Root) -> None:
    first = root.create("x", [b"first"])
    with pytest.raises(AlreadyExistsError, match="x"):
        root.create("x", [b"second"])
    assert root.read("x") == b"first"
    assert root.identity("x") == first
    root.replace("x", b"third")
    assert root.read("x") == b"third"
    assert root.identity("x") != first


def test_a_disk_that_can_not_make_it_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems find out in fsync that there is no room."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(SpaceError, match="run the same command again"):
            Root(str(tmp_path)).create("x", [b"1"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_room(tmp_path: Path) -> None:
    free, total = Root(str(tmp_path / "not" / "there" / "yet")).room() or (0, 0)
    assert 0 < free < total
    assert Root(f"memory://{tmp_path.name}").room() is None


def test_unknown_protocol() -> None:
    with pytest.raises(InputError, match="can't be opened"):
        Root("nonsense://x/y")


@pytest.mark.parametrize("url", ["s3://", "memory://", "gs:///"])
def test_a_url_without_a_place_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="names no place"):
        Root(url)
