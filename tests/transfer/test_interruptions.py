"""Killed at any moment and run again: the copy is the one that was never interrupted."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3data import open_dataset
from tests.killing import entries, kill_after, start
from tests.support import Command, same_sample, small_manifest, write_set
from tests.transfer.support import array_objects, files, valid_samples

WAYS = {
    "as it is": [],
    "written anew": ["--codec", "pcodec", "--where", "length > 5", "--drop", "s3"],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("interrupted") / "source"
    return write_set(folder, valid_samples(40, small_manifest()), small_manifest())


@pytest.mark.parametrize("way", WAYS)
def test_kill_9_and_continue(source: str, tmp_path: Path, command: Command, way: str) -> None:
    whole, url = tmp_path / "whole", tmp_path / "killed"
    assert command("copy", source, whole, *WAYS[way]).returncode == 0
    rng = random.Random(way)
    killed = 0
    for _ in range(4):
        process = start(["copy", source, url, *WAYS[way]])
        killed += kill_after(process, url, entries(url) + rng.randint(1, 40))
    assert killed >= 3
    done = command("copy", source, url, *WAYS[way])
    assert done.returncode == 0, done.stderr
    assert array_objects(url) == array_objects(whole)
    one, other = open_dataset(str(url)), open_dataset(str(whole))
    assert one.index.equals(other.index)
    assert one.generation == other.generation
    if way == "as it is":
        assert files(url) == files(source)
    again = command("copy", source, url, *WAYS[way])
    assert "Nothing to do" in again.stdout


@pytest.mark.parametrize("way", WAYS)
def test_two_at_once_share_the_shards(source: str, tmp_path: Path, way: str) -> None:
    url = tmp_path / "shared"
    processes = [start(["copy", source, url, *WAYS[way]]) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    original, copy = open_dataset(source), open_dataset(str(url))
    assert len(copy) > 20
    assert all(same_sample(sample, original.get(sample.sample_id)) for sample in copy)


@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_keeps_what_is_committed(
    source: str, tmp_path: Path, command: Command, way: str
) -> None:
    """A limit on file size stands for the full disk: the kernel refuses the write half-way."""
    url = tmp_path / "copy"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (7_000, 7_000))

    words = ["copy", source, url, *WAYS[way]]
    full = subprocess.run(
        [sys.executable, "-m", "eagle3data.cli.main", *map(str, words)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert full.returncode == 2
    assert "no space left" in full.stderr
    assert "Traceback" not in full.stderr
    before = array_objects(url)
    committed = {path.stem for path in (url / "index").glob("0*.arrow")}
    assert {f"{int(name.split('/c/')[1].split('/')[0]):08d}" for name in before} <= committed
    assert command(*words).returncode == 0
    assert before.items() <= array_objects(url).items()
