"""Upload to a stand-in for the hub by the hub's own client, and reading from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle3data import DatasetWriter, open_dataset, validate
from eagle3data.readers.card import NAME
from eagle3data.schema.errors import InputError
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury
from eagle3data.transfer.hub import HubPlace
from tests.support import eagle3data, random_sample, small_manifest, write_set
from tests.transfer.hub_stand_in import HubStandIn
from tests.transfer.support import files, flip_bit, valid_samples

URL = "hf://datasets/team/states"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with HubStandIn() as running:
        yield running


@pytest.fixture
def run(hub: HubStandIn) -> Run:
    return lambda *words: eagle3data(*words, environment=hub.environment)


@pytest.fixture
def source(tmp_path: Path) -> str:
    url = write_set(tmp_path / "source", valid_samples(20, small_manifest()), small_manifest())
    bury(Root(url), shard=0, sample_id="s0", kind="chunk_corrupt", reason="a test")
    return url


def test_up_and_back_and_growing(hub: HubStandIn, run: Run, source: str, tmp_path: Path) -> None:
    done = run("copy", source, URL)
    assert done.returncode == 0, done.stderr
    repository = hub.repositories["team/states"]
    assert repository.private
    tree = dict(repository.head.tree)
    card = tree.pop(NAME).decode()
    assert f"| samples | {len(open_dataset(source)):,}, and 1 " in card
    own = files(source)
    gathered = (tree.pop(layout.ALL_PARTS), own.pop(layout.ALL_PARTS, None))
    assert gathered[0]
    assert tree == own

    before = len(repository.commits)
    done = run("copy", source, URL)
    assert (done.returncode, "Nothing to do" in done.stdout) == (0, True), done.stderr
    assert len(repository.commits) == before

    with DatasetWriter.resume(source) as writer:
        for number in range(3):
            writer.append(random_sample(f"more{number}", 100, number, writer.manifest))
    done = run("copy", source, URL)
    assert (done.returncode, "3 shards written" in done.stdout) == (0, True), done.stderr

    done = run("copy", URL, tmp_path / "back")
    assert done.returncode == 0, done.stderr
    assert open_dataset(str(tmp_path / "back")).generation == open_dataset(source).generation
    report = validate(str(tmp_path / "back"), level="full")
    # The sample that was put aside, which no plan segment does again.
    assert [finding.kind for finding in report.errors] == ["index_hole"]
    facts = json.loads(run("info", f"{URL}@main", "--json").stdout)
    assert facts["generation"] == open_dataset(source).generation
    # Every revision is a set: each shard's index part came with all its objects.
    for commit in repository.commits[1:]:
        assert layout.GROUP in commit.tree
        for shard in layout.shards_of(
            name.removeprefix("index/") for name in commit.tree if name.startswith("index/")
        ):
            for array in layout.array_names(small_manifest()):
                assert layout.shard_object(array, shard) in commit.tree


def test_reads_no_more_than_asked(hub: HubStandIn, run: Run, source: str) -> None:
    assert run("copy", source, f"{URL}/sets/first").returncode == 0
    hub.ranges.clear()
    done = run("show", f"{URL}/sets/first", "3", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["input_ids"] == open_dataset(source)[3].input_ids.tolist()
    lengths = [
        int(stop) - int(start) + 1
        for start, stop in (it.removeprefix("bytes=").split("-") for it in hub.ranges)
    ]
    assert lengths
    assert sum(lengths) < sum(
        len(data) for data in hub.repositories["team/states"].head.tree.values()
    )


def test_a_damaged_object_is_never_uploaded(hub: HubStandIn, run: Run, source: str) -> None:
    shard = layout.committed_shards(Root(source))[1]
    name = layout.shard_object(layout.states_array(6), shard)
    flip_bit(Root(source), name, 5)
    done = run("copy", source, URL)
    assert done.returncode == 2
    assert f"shard {shard}" in done.stderr
    assert "Traceback" not in done.stderr
    assert layout.index_part(shard) not in hub.repositories["team/states"].head.tree
    flip_bit(Root(source), name, 5)
    assert run("copy", source, URL).returncode == 0


def test_somebody_else_commits_meanwhile(hub: HubStandIn, run: Run, source: str) -> None:
    hub.fail_commits = 1
    done = run("copy", source, URL)
    assert (done.returncode, "changed by somebody else" in done.stderr) == (2, True), done.stderr
    sent = len(hub.sent)
    assert run("copy", source, URL).returncode == 0
    assert len(hub.sent) >= sent


def test_kill_9(hub: HubStandIn, source: str) -> None:
    words = [sys.executable, "-m", "eagle3data.cli.main", "copy", source, URL]
    process = subprocess.Popen(words, env={**os.environ, **hub.environment})
    while process.poll() is None and len(hub.sent) < 9:
        pass
    process.kill()
    process.wait()
    left = hub.repositories["team/states"].head.tree
    assert [name for name in left if "/c/" in name] == []
    done = eagle3data("copy", source, URL, environment=hub.environment)
    assert done.returncode == 0, done.stderr
    own = files(source)
    assert {name: hub.repositories["team/states"].head.tree[name] for name in own} == own


def test_what_is_refused(hub: HubStandIn, run: Run, source: str, tmp_path: Path) -> None:
    done = run("copy", source, URL, "--codec", "lz4")
    assert (done.returncode, "takes one set as it is" in done.stderr) == (2, True)
    done = run("copy", source, "hf://team/a-model")
    assert (done.returncode, "names no repository of data sets" in done.stderr) == (2, True)
    assert hub.repositories == {}
    assert run("copy", source, URL).returncode == 0
    other = write_set(tmp_path / "other", valid_samples(4, small_manifest()), small_manifest())
    done = run("copy", other, URL)
    assert (done.returncode, "no copy of it" in done.stderr) == (2, True), done.stderr
    done = run("info", "hf://datasets/team/nothing")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    done = run("repair", URL)
    assert "Traceback" not in done.stderr


def test_a_card_of_ones_own_stays(hub: HubStandIn, run: Run, source: str) -> None:
    assert run("copy", source, URL).returncode == 0
    hub.repositories["team/states"].head.tree[NAME] = b"# mine\n"
    bury(Root(source), shard=1, sample_id="s3", kind="chunk_corrupt", reason="a test")
    assert run("copy", source, URL).returncode == 0
    assert hub.repositories["team/states"].head.tree[NAME] == b"# mine\n"


@pytest.mark.parametrize(
    ("url", "repo", "revision", "folder"),
    [
        ("hf://datasets/a/b", "a/b", None, ""),
        ("hf://datasets/a/b/", "a/b", None, ""),
        ("hf://datasets/a/b@dev/c/d", "a/b", "dev", "c/d/"),
        ("hf://datasets/a/b@refs/pr/3", "a/b", "refs/pr/3", ""),
        ("hf://datasets/a/b@refs%2Fpr%2F3/c", "a/b", "refs/pr/3", "c/"),
    ],
)
def test_places(url: str, repo: str, revision: str | None, folder: str) -> None:
    assert HubPlace.of(url) == HubPlace(repo, revision, folder)


@pytest.mark.parametrize("url", ["hf://a/b", "hf://datasets/a", "hf://spaces/a/b", "hf://datasets"])
def test_no_places(url: str) -> None:
    with pytest.raises(InputError, match="names no repository"):
        HubPlace.of(url)
