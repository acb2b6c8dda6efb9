"""An engine that hands over another request's rows stops `extract` before the shard's commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from eagle3data.extractor import run
from eagle3data.extractor.engines.base import Captured, Engine, Request
from eagle3data.extractor.engines.choice import EngineOptions, load_engine
from eagle3data.extractor.run import ExtractOptions, extract
from eagle3data.schema.errors import CorruptionError
from eagle3data.storage.layout import committed_shards
from eagle3data.storage.root import Root
from eagle3data.validation.validate import validate
from tests.support import CONVERSATIONS, eagle3data

_RIGHT = 20
_LONG = 150


class _Mixed:
    """The engine, but that the aux layers of one sample are those of an earlier request."""

    name, version = "mixed", "0"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        earlier: Captured | None = None
        is_done = False
        for number, right in enumerate(self._engine.capture(groups)):
            captured = right
            length = _length(captured)
            is_due = number > _RIGHT and not is_done
            if is_due and earlier is not None and _LONG <= length <= _length(earlier):
                final = max(captured.hidden_states)
                states = {layer: rows[:length] for layer, rows in earlier.hidden_states.items()}
                states[final] = captured.hidden_states[final]
                captured = replace(captured, hidden_states=states, statistics={})
                is_done = True
            elif length >= _LONG:
                earlier = captured
            yield captured

    def close(self) -> None:
        self._engine.close()


def _length(captured: Captured) -> int:
    return len(captured.request.input_ids)


def _extract(prompts: Path, model: Path, url: str) -> None:
    engine = EngineOptions(engine="transformers")
    options = ExtractOptions(engine=engine, shard_tokens=512, compute_dtype="float32")
    extract(
        *(str(prompts), str(model), url, options),
        on_start=_ignore,
        on_tokens=_ignore,
        on_wait=_ignore,
        on_notice=pytest.fail,
    )


def test_mixed_up_rows_are_never_committed(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "load_engine", lambda *words: _Mixed(load_engine(*words)))
    prompts, url = tmp_path / "prompts.arrow", str(tmp_path / "set")
    done = eagle3data("prepare", CONVERSATIONS, "--model", smollm2, "--out", prompts)
    assert done.returncode == 0, done.stderr
    with pytest.raises(CorruptionError, match="states are not those of its tokens") as told:
        _extract(prompts, smollm2, url)
    assert told.value.kind == "swapped_samples"
    committed = committed_shards(Root(url))
    assert committed
    assert told.value.shard not in committed
    assert validate(url, "full").errors == []
    monkeypatch.setattr(run, "load_engine", load_engine)
    _extract(prompts, smollm2, url)
    assert validate(url, "semantic", str(smollm2)).errors == []


class _Forgetful(_Mixed):
    """The engine, but that it loses a request."""

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        captured = self._engine.capture(groups)
        yield from islice(captured, 3)
        next(captured)
        yield from captured


def test_a_lost_request_is_told_and_not_waited_for(
    smollm2: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "load_engine", lambda *words: _Forgetful(load_engine(*words)))
    with pytest.raises(CorruptionError, match="returned nothing for 1 requests"):
        _extract(prompts, smollm2, str(tmp_path / "set"))


def _ignore(*_: object) -> None:
    pass
