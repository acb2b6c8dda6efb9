"""A folder of copies: its limit, its processes, and what they leave when they are killed."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3data.schema.errors import InputError
from eagle3data.storage.cache_folder import CacheFolder
from tests.storage.processes import with_mounts

KIB = 1 << 10

_FILL = """
import sys
from eagle3data.storage.cache_folder import CacheFolder
folder = CacheFolder(sys.argv[1], int(sys.argv[2]), set_name="a", generation="1")
print("open", flush=True)
sys.stdin.readline()
for turn in range(40):
    for number in range(12):
        name = f"{number % 3}/{number}"
        folder.put(name, [bytes([number]) * 1024, bytes(turn + number)])
        if (turn + number + int(sys.argv[3])) % 5 == 0:
            folder.discard(name)
"""

_KILLED = """
import os, signal, sys
from eagle3data.storage import cache_folder
folder = cache_folder.CacheFolder(sys.argv[1], 1 << 20, set_name="a", generation="1")
folder.put("whole", [b"x" * 5000])
write_all = cache_folder.write_all
def half(descriptor, parts):
    write_all(descriptor, [parts[0][:100]])
    os.kill(os.getpid(), signal.SIGKILL)
cache_folder.write_all = half
folder.put("half", [b"y" * 7000])
"""

_FULL = """
import logging, sys
from eagle3data.storage.cache_folder import CacheFolder
logging.basicConfig(stream=sys.stdout)
folder = CacheFolder(sys.argv[1], 1 << 30, set_name="a", generation="1")
kept = [folder.put(str(n), [bytes(200 << 10)]) for n in range(10)]
assert kept[0] and not kept[-1], kept
assert all(folder.open(str(n)).size == 200 << 10 for n, there in enumerate(kept) if there)
assert folder.used() == sum(kept) * (200 << 10), (folder.used(), kept)
"""


def _folder(root: Path, limit: int = 1 << 20, generation: str = "1") -> CacheFolder:
    return CacheFolder(root, limit, set_name="a", generation=generation)


def _on_disk(root: Path) -> int:
    """Bytes of all copies, and of those on their way."""
    found = 0
    for folder, _, names in os.walk(root):
        for name in set(names) - {"account", "users"}:
            try:
                found += os.stat(f"{folder}/{name}").st_size
            except FileNotFoundError:
                continue
    return found


def _content(folder: CacheFolder, name: str) -> bytes | None:
    file = folder.open(name)
    return None if file is None else file.read(0, file.size).tobytes()


def test_copies_are_kept_within_the_limit(tmp_path: Path) -> None:
    folder = _folder(tmp_path, limit=10 * KIB)
    assert folder.open("x") is None
    assert folder.put("x", [b"ab" * 2000, memoryview(b"c")])
    assert _content(folder, "x") == b"ab" * 2000 + b"c"
    assert folder.put("x", [b"what is there stays"])
    assert folder.put("0/y", [bytes(6000)])
    assert not folder.put("z", [bytes(300)])
    assert folder.used() == 10001 == _on_disk(tmp_path)
    folder.discard("x")
    folder.discard("x")
    assert folder.put("z", [bytes(300)])
    assert folder.names() == ["0/y", "z"]
    assert folder.used() == 6300 == _on_disk(tmp_path)


def test_the_limit_holds_for_all_sets_together(tmp_path: Path) -> None:
    one = _folder(tmp_path, limit=10 * KIB)
    other = CacheFolder(tmp_path, 10 * KIB, set_name="b", generation="1")
    assert one.put("x", [bytes(6000)])
    assert not other.put("x", [bytes(6000)])
    assert other.put("x", [bytes(4000)])


def test_processes_never_pass_the_limit_together(tmp_path: Path) -> None:
    limit = 9 * KIB
    words = [sys.executable, "-c", _FILL, str(tmp_path), str(limit)]
    fillers = [
        subprocess.Popen(
            [*words, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    for filler in fillers:
        assert filler.stdout is not None
        assert filler.stdout.readline() == "open\n"
    for filler in fillers:
        assert filler.stdin is not None
        filler.stdin.write("go\n")
        filler.stdin.close()
    folder = _folder(tmp_path, limit)
    while any(filler.poll() is None for filler in fillers):
        # Counted under the lock, so a file that moves is not seen twice.
        with folder._account() as account:
            assert _on_disk(tmp_path) <= account.used <= limit
    assert [filler.returncode for filler in fillers] == [0, 0, 0]
    assert folder.used() == _on_disk(tmp_path)
    assert folder.names()


def test_what_a_killed_process_was_writing_goes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert _on_disk(tmp_path) == 12000
    folder = _folder(tmp_path)
    assert folder.used() == 5000 == _on_disk(tmp_path)
    assert (_content(folder, "whole"), _content(folder, "half")) == (b"x" * 5000, None)
    assert folder.put("half", [b"z" * 7000])


def test_what_another_is_writing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path)
    seen: list[int] = []

    def write(descriptor: int, parts: list[bytes]) -> int:
        seen.append(_folder(tmp_path).used())
        return os.writev(descriptor, parts)

    monkeypatch.setattr("eagle3data.storage.cache_folder.write_all", write)
    assert folder.put("x", [bytes(3000)])
    assert seen == [3000]
    assert _content(folder, "x") == bytes(3000)


def test_generations_nobody_uses_go(tmp_path: Path) -> None:
    old = _folder(tmp_path)
    assert old.put("x", [bytes(3000)])
    new = _folder(tmp_path, generation="2")
    assert new.used() == 3000  # the old one is still in use
    assert old.open("x") is not None
    del old, new
    newest = _folder(tmp_path, generation="3")
    assert newest.used() == 0 == _on_disk(tmp_path)


def test_a_full_disk_is_told_once_and_is_nobodys_trouble(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=1m none {place}"
    done = with_mounts(mount, [sys.executable, "-c", _FULL, str(place)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("takes no more (No space left on device)") == 1, done.stdout


def test_a_disk_that_fails_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = _folder(tmp_path)
    assert folder.put("x", [bytes(3000)])

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("eagle3data.storage.cache_folder.write_all", fail)
    with caplog.at_level(logging.WARNING):
        assert not folder.put("y", [bytes(3000)])
        assert not folder.put("z", [bytes(3000)])
    assert caplog.text.count("takes no more (Input/output error)") == 1
    assert folder.used() == 3000 == _on_disk(tmp_path)
    assert _content(folder, "x") == bytes(3000)


def test_a_place_that_can_not_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cache folder"):
        _folder(tmp_path / "file")
