"""Replicas on a Ray cluster: started, watched, begun anew where they die, ended for certain."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from eagle3data.extractor.replica import LEAVE_SECONDS, Progress, Replica, Share, SharedJob
from eagle3data.extractor.worker import OnTokens
from eagle3data.schema.errors import ClusterError, EngineError, InputError
from eagle3data.storage.layout import committed_shards
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root
from eagle3data.writers.shared_shards import OnWait

MOST_DEATHS = 3
"""So many in a row, without a shard committed between them, and a replica is given up."""
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 30.0
_ANSWER_SECONDS = 10.0
_END_SECONDS = LEAVE_SECONDS + 15.0
_THREADS = 4
"""Of a replica: one works, the others answer."""
_DEATHS = (RayActorError, NodeDiedError, WorkerCrashedError, OutOfMemoryError, ObjectLostError)

OnNotice = Callable[[str], None]


@contextlib.contextmanager
def connected(on_notice: OnNotice) -> Iterator[list[dict[str, float]]]:
    """Be connected to a cluster; gives the resources of its nodes.

    A process that is connected already stays so. Else it is the one that Ray finds (by
    `RAY_ADDRESS`, or on this machine), or one of this machine alone, which ends with the `with`
    block.

    Raises:
        ClusterError: no cluster answers at `RAY_ADDRESS`.
    """
    # Ray writes what raylets have to say to stdout, which belongs to the command's result.
    with contextlib.redirect_stdout(sys.stderr):
        is_ours = not ray.is_initialized()
        if is_ours:
            _connect(on_notice)
        try:
            yield [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
        finally:
            if is_ours:
                ray.shutdown()


def _connect(on_notice: OnNotice) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The first error ends the run and is told; those of the other replicas say the same.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS") or None
    try:
        if address is not None:
            _require_answer(address)
        ray.init(address="auto", **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        if address is not None:
            raise ClusterError(
                f"no Ray cluster answers at RAY_ADDRESS={address}: {error}. Run the command on one "
                "of its nodes, with the address that `ray start` printed; or unset RAY_ADDRESS to "
                "use this machine alone."
            ) from error
        on_notice("no Ray cluster runs here: one is started for this run, of this machine alone.")
        ray.init(address="local", include_dashboard=False, **quiet)


def _require_answer(address: str) -> None:
    """Ask once: Ray itself goes on asking for minutes.

    Raises:
        OSError, ValueError: nobody is there, or it is no such address.
    """
    if address in {"auto", "local"}:
        return
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or "/" in host:
        raise ValueError("expected an address such as 10.0.0.1:6379")
    socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()


@dataclass(kw_only=True)
class _Member:
    """A replica's place in the crew, and the actor that has it now.

    Attributes:
        number: for people, from 1.
        actor: Ray's handle.
        answer: of the call that the actor is busy with: `owner`, then `work`.
        asked: of the last `progress` call that is not answered yet.
        owner: the process; None until the actor runs.
        deaths: in a row, without a shard committed between them.
    """

    number: int
    actor: Any
    answer: Any
    asked: Any = None
    owner: Owner | None = None
    progress: Progress = field(default_factory=lambda: Progress(tokens={}, waiting=[]))
    deaths: int = 0
    begun: float = field(default_factory=time.monotonic)
    has_waited: bool = False

    def __str__(self) -> str:
        return f"replica {self.number}" + (f" ({self.owner})" if self.owner else "")


class Crew:
    """Replicas that share a job, and the driver that watches them."""

    def __init__(
        self,
        shared: SharedJob,
        share: Share,
        *,
        on_tokens: OnTokens,
        on_wait: OnWait,
        on_notice: OnNotice,
    ) -> None:
        """Start nothing yet.

        Args:
            shared: what to do; its objects go to the nodes once each.
            share: what a replica takes.
            on_tokens: called with tokens done and their shard; tokens that are done again after
                a death count once.
            on_wait: called with the shards that others have while every replica waits for them.
            on_notice: called with a line about a death, or about a replica that finds no room.
        """
        self._shared, self._share = shared, share
        self._on_tokens, self._on_wait, self._on_notice = on_tokens, on_wait, on_notice
        self._told: set[str] = set()
        self._root = Root(shared.url)
        self._members: list[_Member] = []
        self._gone: list[Owner] = []
        self._done: dict[int, int] = {}
        self._is_finished = False

    def run(self, replicas: int) -> None:
        """Start so many replicas, and stay until all the job's shards are committed.

        Raises:
            ClusterError: every replica died too often.
            Eagle3DataError: what a replica raised, as it raised it.
        """
        self._job = ray.put(self._shared)
        try:
            self._members = [self._start(number + 1) for number in range(replicas)]
            while not self._is_finished:
                self._look()
            for shard in self._shared.job.missing:
                self._count(shard, self._shared.job.work.tokens_of(shard))
        finally:
            self._end_all()

    def _start(self, number: int, deaths: int = 0) -> _Member:
        options = {
            "num_cpus": self._share.cpus,
            "num_gpus": self._share.gpus,
            "max_restarts": 0,
            "max_concurrency": _THREADS,
            "scheduling_strategy": "SPREAD",
        }
        actor = ray.remote(Replica).options(**options).remote()
        return _Member(number=number, actor=actor, answer=actor.owner.remote(), deaths=deaths)

    def _look(self) -> None:
        """Wait a moment for answers, and do what they ask for."""
        for member in self._members:
            if member.owner is not None and member.asked is None:
                member.asked = member.actor.progress.remote()
        told = [member.asked for member in self._members if member.asked is not None]
        refs = [*told, *(member.answer for member in self._members)]
        answered, _ = ray.wait(refs, num_returns=len(refs), timeout=_LOOK_SECONDS)
        # Progress first: a death is judged by how far its replica was.
        for member in list(self._members):
            if member.asked in answered:
                self._take_progress(member)
            if member.answer in answered:
                self._take_answer(member)
        self._tell_waiting()

    def _take_progress(self, member: _Member) -> None:
        asked, member.asked = member.asked, None
        try:
            member.progress = ray.get(asked)
        except _DEATHS:
            # The call that it was busy with says the same.
            return
        for notice in member.progress.notices:
            if notice not in self._told:
                self._told.add(notice)
                self._on_notice(notice)
        for shard, tokens in member.progress.tokens.items():
            self._count(shard, tokens)

    def _count(self, shard: int, tokens: int) -> None:
        """Tell how many tokens of a shard are done, where that is more than was told."""
        before = self._done.get(shard, 0)
        now = min(tokens, self._shared.job.work.tokens_of(shard))
        if now > before:
            self._done[shard] = now
            self._on_tokens(now - before, shard)

    def _take_answer(self, member: _Member) -> None:
        try:
            answer = ray.get(member.answer)
        except RayTaskError as error:
            self._take_error(member, error)
        except _DEATHS as error:
            self._take_death(member, error)
        else:
            if isinstance(answer, Owner):
                member.owner = answer
                member.actor.know_gone.remote(self._gone)
                member.answer = member.actor.work.remote(self._job)
            else:
                self._is_finished = True

    def _take_error(self, member: _Member, error: RayTaskError) -> None:
        cause = error.cause
        # An engine that can't start will not start elsewhere; one that worked may.
        if isinstance(cause, EngineError) and member.progress.tokens:
            self._take_death(member, cause)
        elif isinstance(cause, Exception):
            raise cause from error
        else:
            raise error

    def _take_death(self, member: _Member, error: Exception) -> None:
        """Begin a replica anew, unless it has died too often."""
        if getattr(error, "actor_init_failed", False):
            raise InputError(
                f"a replica could not start: {error}\nWith --ray every node needs the driver's "
                "environment: the same Python, and eagle3data with its extras."
            ) from error
        ray.kill(member.actor)
        self._members.remove(member)
        if member.owner is not None:
            self._gone.append(member.owner)
            for other in self._members:
                other.actor.know_gone.remote([member.owner])
        has_committed = not set(committed_shards(self._root)).isdisjoint(member.progress.tokens)
        deaths = 1 if has_committed else member.deaths + 1
        reason = str(error).strip().splitlines()[-1].partition(". ")[0].rstrip(".")
        if deaths < MOST_DEATHS:
            self._on_notice(f"{member} was lost and is begun anew ({reason})")
            self._members.append(self._start(member.number, deaths))
        elif self._members:
            self._on_notice(
                f"{member} was lost {deaths} times without a shard committed and is given up; "
                f"replicas left: {len(self._members)} ({reason})"
            )
        elif isinstance(error, EngineError):
            raise error
        else:
            raise ClusterError(
                f"every replica was lost {deaths} times without a shard committed, last "
                f"{member}: {reason}. What is committed stays whole: run the same command again to "
                "continue."
            ) from error

    def _tell_waiting(self) -> None:
        working = [member for member in self._members if member.owner is not None]
        if working and all(member.progress.waiting for member in working):
            self._on_wait(working[0].progress.waiting)
        for member in self._members:
            waits = member.owner is None and time.monotonic() - member.begun > _PATIENCE_SECONDS
            if waits and not member.has_waited:
                member.has_waited = True
                self._on_notice(
                    f"{member} waits for a node with {self._share} free; the others go on."
                )

    def _end_all(self) -> None:
        """End the engines where they run, then the replicas, whatever they are at."""
        members, self._members = self._members, []
        try:
            ends = [member.actor.end.remote() for member in members if member.owner is not None]
            if ends:
                ray.wait(ends, num_returns=len(ends), timeout=_END_SECONDS)
        finally:
            for member in members:
                ray.kill(member.actor)
