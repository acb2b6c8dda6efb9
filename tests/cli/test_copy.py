"""`eagle3data copy` as a person runs it: previews, reports, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3data import open_dataset
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from tests.support import Command, random_samples, small_manifest, write_set


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write_set(tmp_path / "source", random_samples(12, small_manifest()), small_manifest())


def test_dry_run_says_what_it_takes_and_writes_nothing(
    source: str, tmp_path: Path, command: Command
) -> None:
    words = ["copy", source, tmp_path / "copy", "--codec", "pcodec", "--where", "split == 'train'"]
    done = command(*words, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    preview = json.loads(done.stdout)
    assert (preview["samples"], preview["byte_for_byte"], preview["fits"]) == (9, False, True)
    assert preview["missing"] == preview["shards"] > 0
    assert preview["free_bytes"] > preview["nbytes"] > 0
    text = command(*words, "--dry-run")
    assert "samples written anew" in text.stdout
    assert not (tmp_path / "copy").exists()
    report = json.loads(command(*words, "--json").stdout)
    assert (report["samples"], report["written"]) == (9, preview["shards"])


def test_drop_by_list_and_by_file(source: str, tmp_path: Path, command: Command) -> None:
    names = tmp_path / "ids.txt"
    names.write_text("s1\n\n s2 \n")
    for drop in ("s1, s2", f"@{names}"):
        url = tmp_path / str(len(drop))
        assert command("copy", source, url, "--drop", drop).returncode == 0
        ids = open_dataset(str(url)).index["sample_id"].to_pylist()
        assert set(ids) == {f"s{number}" for number in range(12)} - {"s1", "s2"}


def test_damage_is_code_2_and_skipping_it_code_1(
    source: str, tmp_path: Path, command: Command
) -> None:
    path = Path(Root(source).join(layout.shard_object(layout.states_array(2), 1)))
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    stopped = command("copy", source, tmp_path / "stopped")
    assert stopped.returncode == 2
    assert "chunk_corrupt" in stopped.stderr
    assert "hidden_states/2, shard 1, chunk 0, sample s" in stopped.stderr
    skipped = command("copy", source, tmp_path / "skipped", "--on-error", "skip")
    assert skipped.returncode == 1, skipped.stderr
    assert "1 samples could not be read" in skipped.stderr
    assert len(open_dataset(str(tmp_path / "skipped"))) == 11


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--where", "lenght > 3"], "no column 'lenght'. It has sample_id"),
        (["--drop", "nobody"], "no source has nobody"),
        (["--drop", ""], "names no sample"),
        (["--drop", "@nothing.txt"], "can't be read"),
        (["--codec", "zip"], "expected none, lz4, pcodec"),
        (["--layers", "3"], "has layers 2,6,9,12, not 3"),
        (["--on-error", "ignore"], "expected raise or skip"),
        (["--duplicates", "keep"], "expected refuse or skip"),
    ],
)
def test_what_cannot_be_done_is_code_2(
    source: str, tmp_path: Path, command: Command, words: list[str], message: str
) -> None:
    done = command("copy", source, tmp_path / "copy", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "copy").exists()


def test_one_url_is_not_enough(source: str, command: Command) -> None:
    done = command("copy", source)
    assert done.returncode == 2
    assert "at least one SRC" in done.stderr
