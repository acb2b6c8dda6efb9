"""Killed, interrupted or out of room: what is committed stays, and the rest is done again."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3data import open_dataset
from tests.killing import entries, kill_after, start
from tests.support import CONVERSATIONS, Command, eagle3data, same_sample

SMALL_SHARDS = ("--shard-tokens", "384")


def _words(prompts: Path, smollm2: Path, url: Path) -> list[str]:
    return list(map(str, ["extract", prompts, "--model", smollm2, "--out", url, *SMALL_SHARDS]))


def _holds_the_same(url: Path, other: Path) -> bool:
    """Ids, offsets, masks, statistics and states; chunks may lie in another order in a shard."""
    here, there = open_dataset(str(url)), open_dataset(str(other))
    if not here.index.equals(there.index):
        return False
    return all(same_sample(here[row], there[row]) for row in range(len(there)))


def _objects(url: Path) -> dict[str, bytes]:
    """Every array object, by name."""
    files = [path for path in url.rglob("*") if path.is_file()]
    names = {str(path.relative_to(url)): path for path in files}
    return {name: path.read_bytes() for name, path in names.items() if "/c/" in name}


@pytest.fixture(scope="session")
def never_interrupted(
    smollm2: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    url = tmp_path_factory.mktemp("whole") / "set"
    done = eagle3data(*_words(prompts, smollm2, url))
    assert done.returncode == 0, done.stderr
    return url


def _kill_and_continue(
    kills: int, seed: int, prompts: Path, smollm2: Path, url: Path, never_interrupted: Path
) -> int:
    words = _words(prompts, smollm2, url)
    rng = random.Random(seed)
    happened = 0
    for _ in range(kills):
        process = start(words)
        happened += kill_after(process, url, entries(url) + rng.randint(1, 14))
    done = eagle3data(*words)
    assert done.returncode == 0, done.stderr
    assert _holds_the_same(url, never_interrupted)
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
    process = start(_words(prompts, smollm2, url))
    while process.poll() is None and not list((url / "index").glob("0*.arrow")):
        time.sleep(0.005)
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
    assert _holds_the_same(url, never_interrupted)


def test_two_workers_share_the_shards(
    prompts: Path, smollm2: Path, tmp_path: Path, never_interrupted: Path
) -> None:
    url = tmp_path / "set"
    workers = [start(_words(prompts, smollm2, url)) for _ in range(2)]
    said = [worker.communicate() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert _holds_the_same(url, never_interrupted)


def test_prompts_are_appended_and_what_is_there_stays(
    prompts: Path, smollm2: Path, tmp_path: Path, states: str, command: Command
) -> None:
    lines = CONVERSATIONS.read_text().splitlines(keepends=True)
    files = {}
    for name, some in (("first", lines[:3]), ("more", lines[2:6])):
        source, files[name] = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.arrow"
        source.write_text("".join(some))
        words = ["prepare", source, "--model", smollm2, "--out", files[name]]
        assert command(*words).returncode == 0
    url = tmp_path / "set"
    extract = ["--model", smollm2, "--out", url]
    assert command("extract", files["first"], *extract).returncode == 0
    before = _objects(url)
    refused = command("extract", files["more"], *extract)
    assert refused.returncode == 2
    assert "--append" in refused.stderr
    done = command("extract", files["more"], *extract, "--append")
    assert done.returncode == 0, done.stderr
    assert "1 of these prompts were part of the set before" in done.stdout
    after = _objects(url)
    assert {name: after[name] for name in before} == before
    again = command("extract", files["more"], *extract, "--append")
    assert "Nothing to do" in again.stdout, again.stdout + again.stderr
    dataset = open_dataset(str(url))
    assert len(dataset) == len(set(dataset.index["sample_id"].to_pylist())) == 6
    assert command("validate", url, "--level", "full").returncode == 0
