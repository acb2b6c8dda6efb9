"""`bench loader`, tiny; what is timed must have delivered the right samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3data.bench.corpus import Corpus
from eagle3data.bench.loader import TOKENS, verify
from eagle3data.bench.loaders import LOADERS, chosen_loaders
from eagle3data.bench.loaders.base import Document, LoaderPeer
from eagle3data.bench.loaders.ours import Streaming
from eagle3data.bench.report import NOT_INSTALLED
from eagle3data.schema.errors import CorruptionError, InputError
from tests.support import eagle3data

FEW_MB = 3_000_000


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(FEW_MB, tokens=TOKENS)


@pytest.mark.parametrize("peer", [Streaming(), *LOADERS], ids=lambda peer: peer.name)
def test_every_installed_loader_delivers_what_was_written(
    peer: LoaderPeer, corpus: Corpus, tmp_path: Path
) -> None:
    if not peer.available():
        pytest.skip(f"{peer.name} is not installed")
    peer.write(corpus, tmp_path)
    verify(peer, corpus, tmp_path)


class _OneValueOff(Streaming):
    def documents(self, batch: Any, /) -> list[Document]:
        found = super().documents(batch)
        found[-1][1][-1][-1, -1] += 1
        return found


class _Empty(Streaming):
    def documents(self, _batch: Any, /) -> list[Document]:
        return []


class _Fewer(Streaming):
    packs = False

    def documents(self, batch: Any, /) -> list[Document]:
        return super().documents(batch)[1:]


@pytest.mark.parametrize(
    "peer", [_OneValueOff(), _Empty(), _Fewer()], ids=lambda one: type(one).__name__
)
def test_a_loader_that_delivers_something_else_is_refused(
    peer: LoaderPeer, corpus: Corpus, tmp_path: Path
) -> None:
    peer.write(corpus, tmp_path)
    with pytest.raises(CorruptionError, match="so its speed means nothing"):
        verify(peer, corpus, tmp_path)


def test_the_command_compares_with_raw_copies(tmp_path: Path) -> None:
    absent = [peer.name for peer in LOADERS if not peer.available()]
    done = eagle3data(
        *("bench", "loader", "--folder", tmp_path, "--peers", ",".join(absent) or "none"),
        *("--bytes", FEW_MB, "--rounds", 1, "--json"),
    )
    assert done.returncode == 0, done.stderr
    (warm,) = json.loads(done.stdout)["sections"]
    rows = {row["case"]: row for row in warm["rows"]}
    assert rows["raw copy of the states, 2 threads"]["speed"] > 0
    for threads in ("1 thread", "2 threads"):
        assert rows[f"eagle3data, {threads}"]["ratio"] > 0
    assert [row["note"] for row in warm["rows"]].count(NOT_INSTALLED) == len(absent)
    assert not list(tmp_path.iterdir())


def test_settings_that_can_not_be_are_refused() -> None:
    with pytest.raises(InputError, match="mds"):
        chosen_loaders("mds,nobody")
    assert chosen_loaders("none") == []
    assert [peer.name for peer in chosen_loaders("zarr, mds")] == ["mds", "zarr"]
