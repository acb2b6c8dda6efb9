"""Killed, interrupted or out of room: what is committed stays, and the rest is done again."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3data import open_dataset
from tests.support import Command, eagle3data

SMALL_SHARDS = ("--shard-tokens", "384")


def _words(prompts: Path, smollm2: Path, url: Path) -> list[str]:
    return list(map(str, ["extract", prompts, "--model", smollm2, "--out", url, *SMALL_SHARDS]))


def _start(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "eagle3data.cli.main", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )


def _objects(url: Path) -> dict[str, bytes]:
    """Every array object, by name."""
    files = [path for path in url.rglob("*") if path.is_file()]
    names = {str(path.relative_to(url)): path for path in files}
    return {name: path.read_bytes() for name, path in names.items() if "/c/" in name}


def _entries(url: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(url))


@pytest.fixture(scope="session")
def never_interrupted(
    smollm2: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    url = tmp_path_factory.mktemp("whole") / "set"
    done = eagle3data(*_words(prompts, smollm2, url))
    assert done.returncode == 0, done.stderr
    return url


def _kill_after(process: subprocess.Popen[str], url: Path, entries: int) -> bool:
    """Kill -9 once the folder holds more entries; false if the run ended first."""
    while process.poll() is None:
        if _entries(url) >= entries:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
    process.communicate()
    return False


def _kill_and_continue(
    kills: int, seed: int, prompts: Path, smollm2: Path, url: Path, never_interrupted: Path
) -> int:
    words = _words(prompts, smollm2, url)
    rng = random.Random(seed)
    happened = 0
    for _ in range(kills):
        process = _start(words)
        happened += _kill_after(process, url, _entries(url) + rng.randint(1, 14))
    done = eagle3data(*words)
    assert done.returncode == 0, done.stderr
    assert _objects(url) == _objects(never_interrupted)
    assert open_dataset(str(url)).index.equals(open_dataset(str(never_interrupted)).index)
    return happened


def test_kill_9_and_continue(
    prompts: Path, smollm2: Path, tmp_path: Path, never_interrupted: Path
) -> None:
    url = tmp_path / "set"
    happened = _kill_and_continue(3, 0, prompts, smollm2, url, never_interrupted)
    assert happened >= 2


@pytest.mark.soak
def test_kill_9_at_ten_random_moments(
    prompts: Path, smollm2: Path, tmp_path: Path, never_interrupted: Path
) -> None:
    happened = 0
    for seed in range(1, 5):
        url = tmp_path / str(seed)
        happened += _kill_and_continue(4, seed, prompts, smollm2, url, never_interrupted)
    print(f"killed {happened} times")
    assert happened >= 10


def test_ctrl_c_says_how_to_continue(
    prompts: Path, smollm2: Path, tmp_path: Path, command: Command
) -> None:
    url = tmp_path / "set"
    process = _start(_words(prompts, smollm2, url))
    while process.poll() is None and not list((url / "index").glob("0*.arrow")):
        pass
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert "Run the same command again to continue" in stderr
    committed = len(list((url / "index").glob("0*.arrow")))
    assert committed >= 1
    done = command(*_words(prompts, smollm2, url))
    assert done.returncode == 0
    again = command(*_words(prompts, smollm2, url))
    assert again.returncode == 0
    assert "Nothing to do" in again.stdout


def test_full_disk_keeps_what_is_committed(
    prompts: Path, smollm2: Path, tmp_path: Path, never_interrupted: Path
) -> None:
    """A limit on file size stands for the full disk: the kernel refuses the write half-way."""
    url = tmp_path / "set"
    words = _words(prompts, smollm2, url)
    done = eagle3data(*words, "--shards", "0:2")
    assert done.returncode == 0, done.stderr
    before = _objects(url)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    full = subprocess.run(
        [sys.executable, "-m", "eagle3data.cli.main", *words],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert full.returncode == 2
    assert "no space left" in full.stderr
    assert "Traceback" not in full.stderr
    assert before.items() <= _objects(url).items()
    assert eagle3data(*words).returncode == 0
    assert _objects(url) == _objects(never_interrupted)


def test_two_writers_at_once(prompts: Path, smollm2: Path, tmp_path: Path) -> None:
    url = tmp_path / "set"
    first = _start(_words(prompts, smollm2, url))
    while first.poll() is None and not (url / "zarr.json").exists():
        pass
    second = eagle3data(*_words(prompts, smollm2, url))
    first.communicate()
    assert first.returncode == 0
    assert second.returncode == 2
    assert "another process is writing" in second.stderr
