"""A set that is trained on while it is extracted: nothing twice, nothing missed, the same again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3data import Dataset, DatasetWriter, StreamingLoader, open_dataset
from eagle3data.readers import growing, index
from eagle3data.readers.growing import read_shards, written_shards
from eagle3data.schema.errors import CorruptionError, InputError, MismatchError, StalledError
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury
from tests.readers.from_the_page import Page, Selected, growing_packs
from tests.support import random_sample, random_samples, same_sample, small_manifest, write_set

BUDGET = 64
MANIFEST = small_manifest(shard_tokens=256)
COUNT = 240
SETTINGS: dict[str, Any] = {
    "token_budget": BUDGET,
    "seed": 3,
    "layers": [2],
    "follow": True,
    "follow_timeout": 60,
}

EXTRACTION = """
import sys
from eagle3data import DatasetWriter
from tests.readers.test_growing import COUNT, MANIFEST
from tests.support import random_samples
with DatasetWriter.resume(sys.argv[1]) as writer:
    for sample in random_samples(COUNT, MANIFEST, longest=60):
        writer.append(sample)
"""

TRAINING = """
import json, os, sys
from eagle3data import StreamingLoader, open_dataset
from tests.readers.test_growing import SETTINGS
url, states = sys.argv[1:]
loader = StreamingLoader(open_dataset(url), **SETTINGS)
lines = open(states).read().splitlines() if os.path.exists(states) else []
if lines:
    loader.load_state_dict(json.loads(lines[-1])["state"])
with open(states, "a") as out:
    for batch in loader:
        row = {"names": batch.sample_ids, "state": loader.state_dict()}
        out.write(json.dumps(row) + "\\n")
        out.flush()
"""


@pytest.fixture
def empty(tmp_path: Path) -> str:
    return write_set(tmp_path / "set", [], MANIFEST)


def _start(script: str, *words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script, *map(str, words)])


def _rows(states: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in states.read_text().splitlines()] if states.exists() else []


def selected_of_rounds(dataset: Dataset, text: str) -> list[list[Selected]]:
    """The samples of each round of a state, numbered by their rows in the whole index."""
    columns = [dataset.index[name].to_pylist() for name in ("length", "token_offset")]
    rows = list(enumerate(zip(*columns, strict=True)))
    rounds = [read_shards(each) for each in text.rstrip(".").split(";")]
    return [
        [
            Selected(row, length, offset // 256)
            for row, (length, offset) in rows
            if offset // 256 in shards
        ]
        for shards in rounds
    ]


def test_an_extraction_is_followed_by_a_training_that_is_killed(empty: str, tmp_path: Path) -> None:
    states = tmp_path / "states.jsonl"
    extraction = _start(EXTRACTION, empty)
    kills = 0
    while True:
        seen = len(_rows(states))
        training = _start(TRAINING, empty, states)
        if kills == 2:
            break
        while training.poll() is None and len(_rows(states)) < seen + 9:
            time.sleep(0.01)
        training.send_signal(signal.SIGKILL)
        assert training.wait() == -signal.SIGKILL
        # What was handed out after the last state that is whole is handed out again.
        whole = states.read_text().rpartition("\n")[0]
        states.write_text(whole + "\n")
        kills += 1
    assert extraction.wait() == 0
    assert training.wait() == 0
    rows = _rows(states)
    names = [row["names"] for row in rows]
    dataset = open_dataset(empty)
    assert len(dataset) == COUNT
    assert sorted(name for batch in names for name in batch) == sorted(
        dataset.sample_id(row) for row in range(COUNT)
    )
    last = rows[-1]["state"]
    rounds = selected_of_rounds(dataset, last["parts"])
    assert last["parts"].endswith(".")
    assert len(rounds) > 1, "the extraction was waited for"
    expected = growing_packs(rounds, BUDGET, 3)
    assert names == [[dataset.sample_id(one.row) for one in pack] for pack in expected]
    # The same parts once more, from the first batch on: another process, the same stream.
    again = StreamingLoader(dataset, **SETTINGS)
    again.load_state_dict({**last, "epoch": 0, "consumed": 0})
    assert [batch.sample_ids for batch in again] == names
    later = [batch.sample_ids for batch in again]
    every = [sample for samples in rounds for sample in samples]
    assert later == [
        [dataset.sample_id(every[one.row].row) for one in pack]
        for pack in Page(
            [[Selected(at, one.length, 0) for at, one in enumerate(every)]], BUDGET, seed=3
        ).packs(1)
    ]


@pytest.fixture
def finished(tmp_path: Path) -> str:
    samples = random_samples(200, MANIFEST, longest=60)
    return write_set(tmp_path / "finished", samples, MANIFEST)


def test_a_finished_set_has_every_epoch(finished: str) -> None:
    loader = StreamingLoader(open_dataset(finished), **SETTINGS, split="train")
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    with pytest.raises(InputError, match="epoch 1 of a set that is followed"):
        loader.set_epoch(1)
    assert loader.epoch == 0
    first = [batch.sample_ids for batch in loader]
    assert loader.epoch == 1
    second = [batch.sample_ids for batch in loader]
    assert sorted(n for b in first for n in b) == sorted(n for b in second for n in b)
    assert len(first) != 0
    assert first != second
    loader.set_epoch(0)
    assert [batch.sample_ids for batch in loader] == first
    nothing = StreamingLoader(open_dataset(finished), **SETTINGS, split="none")
    with pytest.raises(InputError, match="no sample of it is selected"):
        list(nothing)


def test_a_state_of_other_samples_is_refused(finished: str) -> None:
    loader = StreamingLoader(open_dataset(finished), **SETTINGS)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(MismatchError, match="min_length None, here it is .* min_length 5"):
        StreamingLoader(open_dataset(finished), **SETTINGS, min_length=5).load_state_dict(state)
    with pytest.raises(MismatchError, match="expected such as"):
        StreamingLoader(open_dataset(finished), **SETTINGS).load_state_dict({**state, "parts": "x"})
    fixed = StreamingLoader(open_dataset(finished), token_budget=BUDGET, seed=3)
    with pytest.raises(MismatchError, match="generation was of growing"):
        fixed.load_state_dict(state)
    dataset = open_dataset(finished)
    bury(
        Root(finished),
        shard=dataset.shard_of(7),
        sample_id=dataset.sample_id(7),
        kind="all_zero",
        reason="a test",
    )
    with pytest.raises(MismatchError, match="hidden, done again or selected otherwise"):
        StreamingLoader(open_dataset(finished), **SETTINGS).load_state_dict(state)


def test_some_shards_are_the_same_from_parts_and_from_the_gathered_index(
    finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(finished)
    groups = [[0, 2, 5, 6], [1, 3], [4]]
    parts = dataset.of_shards(groups)
    monkeypatch.setattr(index, "_FEW_PARTS", 0)
    for part, gathered in zip(parts, dataset.of_shards(groups), strict=True):
        assert part.generation == gathered.generation != dataset.generation
        assert part.index.equals(gathered.index)
    ids = [part.sample_id(row) for part in parts for row in range(len(part))]
    whole = [dataset.sample_id(row) for row in range(len(dataset)) if dataset.shard_of(row) < 7]
    assert sorted(ids) == sorted(whole)
    for row in (0, len(parts[0]) - 1):
        assert same_sample(parts[0][row], dataset.get(parts[0].sample_id(row)))
    for few in (0, 64):
        monkeypatch.setattr(index, "_FEW_PARTS", few)
        with pytest.raises(CorruptionError, match="gone"):
            dataset.of_shards([[0, 999]])


def test_an_extraction_that_stands_still_is_told(tmp_path: Path) -> None:
    url = str(tmp_path / "set")
    with DatasetWriter.create(url, MANIFEST) as writer:
        for number in range(90):
            writer.append(random_sample(f"s{number}", 60, number, MANIFEST))
        settings = {**SETTINGS, "follow_timeout": 0.2}
        stream: Iterator[Any] = iter(StreamingLoader(open_dataset(url), **settings))
        with pytest.raises(
            StalledError, match=r"nothing new .*claims on others are 0000\d+ \(live\)"
        ):
            list(stream)


def test_follow_is_for_one_set_and_known_ranks(finished: str, tmp_path: Path) -> None:
    cached = open_dataset(finished, cache=tmp_path / "cache", cache_bytes=1 << 20)
    with pytest.raises(InputError, match="reads past a cache"):
        StreamingLoader(cached, **SETTINGS)
    dataset = open_dataset(finished)
    with pytest.raises(InputError, match="one data set"):
        StreamingLoader([dataset, dataset], **SETTINGS)
    with pytest.raises(InputError, match=r"with 2 ranks needs torch\.distributed"):
        StreamingLoader(dataset, **SETTINGS, rank=0, world_size=2)
    with pytest.raises(InputError, match="follow_timeout"):
        StreamingLoader(dataset, **{**SETTINGS, "follow_timeout": 0})


@given(st.sets(st.integers(0, 40)))
def test_shards_are_written_and_read(shards: set[int]) -> None:
    text = written_shards(sorted(shards))
    assert read_shards(text) == tuple(sorted(shards))
    assert len(text) < 4 * len(shards) + 1
    assert growing.written_shards([0, 1, 2, 4]) == "0-2 4"
