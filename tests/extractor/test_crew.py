"""What the driver makes of a replica's death or error; Ray itself is a script here.

tests/end_to_end/test_ray.py has the real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from eagle3data.extractor.replica import Progress, Share, SharedJob
from eagle3data.schema.errors import ClusterError, EngineError, SpaceError
from eagle3data.storage.layout import index_part
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root

pytest.importorskip("ray")
from ray.exceptions import ActorDiedError, RayTaskError

from eagle3data.extractor import crew as crew_module
from eagle3data.extractor.crew import Crew

DEAD = ActorDiedError()


def _raised(error: Exception) -> RayTaskError:
    return RayTaskError("work", "Traceback", error, "title", 1, "127.0.0.1")


@dataclass(eq=False)
class _Call:
    value: Any


@dataclass(eq=False)
class _Actor:
    """A replica that answers `work` with what is written down for it, None being success."""

    owner_: Owner
    progress_: Progress
    work_: Any
    gone: list[Owner] = field(default_factory=list)

    def __getattr__(self, method: str) -> _Actor:
        self.method = method
        return self

    def remote(self, *arguments: Any) -> _Call:
        if self.method == "know_gone":
            self.gone += arguments[0]
        answers = {"owner": self.owner_, "progress": self.progress_, "work": self.work_}
        return _Call(answers.get(self.method))


class _Ray:
    """As much of Ray as the crew uses; `script` has the actors in the order of their start."""

    def __init__(self, script: list[tuple[dict[int, int], Any]]) -> None:
        self.script = script
        self.actors: list[_Actor] = []
        self.killed: list[_Actor] = []

    def remote(self, *_: Any, **__: Any) -> Any:
        if _ or __:
            return self
        tokens, answer = self.script[len(self.actors)]
        owner = replace(Owner.current(), host="elsewhere", pid=len(self.actors))
        self.actors.append(_Actor(owner, Progress(tokens=tokens, waiting=[]), answer))
        return self.actors[-1]

    def options(self, **_: Any) -> _Ray:
        return self

    def put(self, value: Any) -> Any:
        return value

    def wait(self, calls: list[_Call], **_: Any) -> tuple[list[_Call], list[_Call]]:
        return calls, []

    def get(self, call: _Call) -> Any:
        if isinstance(call.value, Exception):
            raise call.value
        return call.value

    def kill(self, actor: _Actor) -> None:
        self.killed.append(actor)


class _Work:
    def tokens_of(self, _: int) -> int:
        return 10


class _Job:
    missing = (0, 1)
    work = _Work()


@dataclass
class _Ran:
    notices: list[str] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)


def _run(
    ray: _Ray, url: Path, monkeypatch: pytest.MonkeyPatch, ran: _Ran, replicas: int = 1
) -> None:
    monkeypatch.setattr(crew_module, "ray", ray)
    job: Any = _Job()
    shared = SharedJob(url=str(url), manifest="", environment={}, job=job)
    crew = Crew(
        shared,
        Share(0, 1),
        on_tokens=lambda tokens, shard: ran.tokens.append((tokens, shard)),
        on_wait=lambda _: None,
        on_notice=ran.notices.append,
    )
    crew.run(replicas)


def test_tokens_that_are_done_again_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, ran = _Ray([({0: 4}, DEAD), ({0: 6}, None)]), _Ran()
    _run(ray, tmp_path, monkeypatch, ran)
    assert sum(tokens for tokens, _ in ran.tokens) == 20
    assert len(ran.notices) == 1
    assert ray.killed == ray.actors


def test_the_next_replica_knows_who_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = _Ray([({}, DEAD), ({}, DEAD), ({}, None)])
    _run(ray, tmp_path, monkeypatch, _Ran())
    first, second, third = ray.actors
    assert third.gone == [first.owner_, second.owner_]


def test_three_deaths_in_a_row_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray, ran = _Ray([({}, DEAD)] * 3), _Ran()
    with pytest.raises(ClusterError, match="every replica was lost 3 times"):
        _run(ray, tmp_path, monkeypatch, ran)
    assert len(ran.notices) == 2


def test_a_committed_shard_begins_the_count_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Root(str(tmp_path)).create(index_part(0), [b""])
    ray = _Ray([({}, DEAD), ({}, DEAD), ({0: 10, 1: 3}, DEAD), ({}, DEAD), ({}, None)])
    _run(ray, tmp_path, monkeypatch, _Ran())
    assert len(ray.actors) == 5


def test_one_is_given_up_before_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = _Ran()
    with pytest.raises(ClusterError):
        _run(_Ray([({}, DEAD)] * 6), tmp_path, monkeypatch, ran, replicas=2)
    assert len(ran.notices) == 5
    assert "is given up; replicas left: 1" in ran.notices[-1]


def test_an_error_ends_the_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = SpaceError("the disk is full")
    ray = _Ray([({0: 3}, _raised(error)), ({}, None)])
    with pytest.raises(SpaceError) as caught:
        _run(ray, tmp_path, monkeypatch, _Ran())
    assert caught.value is error
    assert ray.killed == ray.actors


def test_an_engine_that_worked_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = _raised(EngineError("vLLM ended"))
    ray, ran = _Ray([({0: 3}, ended), ({}, None)]), _Ran()
    _run(ray, tmp_path, monkeypatch, ran)
    assert "vLLM ended" in ran.notices[0]
    with pytest.raises(EngineError):  # one that never did is not
        _run(_Ray([({}, ended), ({}, None)]), tmp_path, monkeypatch, _Ran())
