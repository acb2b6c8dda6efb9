"""Claims: which process works on what, so that any number of them share a job without talking.

A claim is an object `claims/<name>.<attempt>`, created exclusively; the highest attempt holds
`name`. Its owner rewrites it now and then (the heartbeat). Whoever finds that a claim has not
changed for a while, by its own clock, or knows that the owner's process has ended (by looking, or
from whoever started it), creates the next attempt, exclusively again: of several that try, one
wins. The one before finds a higher attempt when it looks, which it does before it commits.
"""

from __future__ import annotations

import datetime
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from eagle3data.schema.errors import AlreadyExistsError, Eagle3DataError
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root

FOLDER = "claims"
MANIFEST = "manifest"
STALE_AFTER = 60.0
"""Seconds without a heartbeat after which a claim may be taken over."""
_BEATS_A_LIFE = 4
_POLL_SECONDS = 0.1
_SHORTEST_BEAT = 0.01


@dataclass(frozen=True)
class ClaimState:
    """A claim as it was read.

    Attributes:
        name: what is claimed: a shard's number in eight digits, or `manifest`.
        attempt: how many claims of this name came before.
        owner: who made it; None where the object can't be read as a claim.
        beat: counts heartbeats.
        renewed_at: when, by the owner's clock; for people, never compared.
    """

    name: str
    attempt: int
    owner: Owner | None
    beat: int
    renewed_at: str

    @property
    def object(self) -> str:
        """Name of its object."""
        return f"{FOLDER}/{self.name}.{self.attempt}"


def shard_name(shard: int) -> str:
    """Name under which a shard is claimed."""
    return f"{shard:08d}"


def list_claims(root: Root) -> dict[str, int]:
    """The highest attempt of every claim, by name."""
    highest: dict[str, int] = {}
    for entry in root.names(FOLDER):
        name, _, attempt = entry.rpartition(".")
        if name and re.fullmatch(r"[0-9]+", attempt):
            highest[name] = max(highest.get(name, 0), int(attempt))
    return highest


def read_claim(root: Root, name: str, attempt: int) -> ClaimState | None:
    """A claim as it stands; None when it is gone."""
    try:
        data = root.read(f"{FOLDER}/{name}.{attempt}")
    except FileNotFoundError:
        return None
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        value = {}
    beat = value.get("beat")
    return ClaimState(
        name,
        attempt,
        Owner.from_dict(value.get("owner")),
        beat if isinstance(beat, int) else -1,
        str(value.get("renewed_at", "")),
    )


class Claim:
    """One thing that this process holds."""

    def __init__(self, root: Root, name: str, attempt: int) -> None:
        """For internal use: `Claims.acquire` makes them."""
        self._root, self.name, self.attempt = root, name, attempt
        self._beat = 0

    def is_held(self) -> bool:
        """Whether it still is this process's: there, and no higher attempt."""
        return list_claims(self._root).get(self.name) == self.attempt

    def create(self) -> None:
        """Make it.

        Raises:
            AlreadyExistsError: another made this attempt first.
        """
        self._root.create(self._object, [self._document()])

    def renew(self) -> None:
        """Show that its owner lives."""
        self._beat += 1
        self._root.replace(self._object, self._document())

    def release(self) -> None:
        """Let go of it."""
        self._root.delete(self._object)

    @property
    def _object(self) -> str:
        return f"{FOLDER}/{self.name}.{self.attempt}"

    def _document(self) -> bytes:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        owner = Owner.current().as_dict()
        return json.dumps({"owner": owner, "beat": self._beat, "renewed_at": now}).encode()


@dataclass
class _Seen:
    state: ClaimState
    since: float


class Claims:
    """The claims of this process on one root, kept alive by a thread of their own.

    Use as a context manager; leaving it releases what is still held.
    """

    def __init__(self, root: Root, *, stale_after: float = STALE_AFTER) -> None:
        """Hold nothing yet; `stale_after` is in seconds, and alike for all who share a root."""
        self._root = root
        self._stale_after = stale_after
        self._held: dict[str, Claim] = {}
        self._gone: set[Owner] = set()
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="eagle3data-claims", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._held):
            self.release(name)

    def acquire(self, name: str) -> Claim | None:
        """Claim something; None where another process holds it and seems to live."""
        attempt = list_claims(self._root).get(name)
        if attempt is not None:
            if not self.is_abandoned(name, attempt):
                return None
            attempt += 1
        claim = Claim(self._root, name, attempt or 0)
        try:
            claim.create()
        except AlreadyExistsError:
            return None
        with self._lock:
            self._held[name] = claim
        for earlier in range(claim.attempt):
            self._root.delete(f"{FOLDER}/{name}.{earlier}")
        return claim

    def release(self, name: str) -> None:
        """Let go of something; nothing happens where it is not held."""
        with self._lock:
            claim = self._held.pop(name, None)
        if claim is not None:
            claim.release()

    @contextmanager
    def holding(self, name: str) -> Iterator[Claim]:
        """Hold something for a moment, once whoever holds it now lets go of it or is gone."""
        while (claim := self.acquire(name)) is None:
            time.sleep(_POLL_SECONDS)
        try:
            yield claim
        finally:
            self.release(name)

    def know_gone(self, owner: Owner) -> None:
        """Take it from whoever started a process that it has ended: its claims need no waiting.

        Should it live after all, behind a broken network, its claims are taken over as from one
        that was silent: it finds the higher attempt before it commits.
        """
        self._gone.add(owner)

    def is_abandoned(self, name: str, attempt: int) -> bool:
        """Whether a claim's owner has ended, or has not renewed it for `stale_after` seconds.

        The second is measured from when this object first saw the claim as it is, so clocks of
        several machines are never compared.
        """
        state = read_claim(self._root, name, attempt)
        if state is None:
            return False
        if state.owner is not None and (state.owner.is_gone or state.owner in self._gone):
            return True
        seen = self._seen.get(name)
        if seen is None or seen.state != state:
            self._seen[name] = seen = _Seen(state, time.monotonic())
        return time.monotonic() - seen.since >= self._stale_after

    def _beat(self) -> None:
        while not self._stop.wait(max(self._stale_after / _BEATS_A_LIFE, _SHORTEST_BEAT)):
            with self._lock:
                for claim in self._held.values():
                    self._renew(claim)

    def _renew(self, claim: Claim) -> None:
        try:
            if claim.is_held():
                claim.renew()
        except (OSError, Eagle3DataError):
            # The next beat tries again; a claim that stays unrenewed is noticed at the commit.
            return
