"""One engine of a job that several machines share, as the process that started it sees it.

A replica works like any `extract`: it claims shards of the set, so that each is an idempotent
task, whoever does it and however often it is begun. What this module adds is how a driver on
another machine tells it what to do, watches it and ends it. It knows nothing of Ray.
"""

from __future__ import annotations

import platform
import threading
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from eagle3data.extractor.engines.choice import engine_version
from eagle3data.extractor.processes import end_own_children
from eagle3data.extractor.run import Job, do_job
from eagle3data.schema.digest import json_digest
from eagle3data.schema.errors import InputError, ManifestError
from eagle3data.storage import layout
from eagle3data.storage.claims import Claims
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root

LEAVE_SECONDS = 10.0
"""What a replica that is to end gets to drop the shard in hand, before its engine is killed."""


@dataclass(frozen=True)
class Share:
    """What one replica takes of the node that it runs on."""

    gpus: int
    cpus: int

    def __str__(self) -> str:
        return f"{self.gpus} GPUs and {self.cpus} CPUs" if self.gpus else f"{self.cpus} CPUs"


@dataclass(frozen=True, kw_only=True)
class SharedJob:
    """A job as it travels to other machines.

    Attributes:
        url: root of the data set, absolute.
        manifest: digest of the manifest that the driver sees there.
        environment: versions of what the states depend on, by name.
        job: with the model's absolute path where it is a folder.
    """

    url: str
    manifest: str
    environment: dict[str, str]
    job: Job


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a replica is.

    Attributes:
        tokens: that came back from its engine, by shard.
        waiting: shards that other workers have, where nothing else is left for it to do.
        notices: what it had to say.
    """

    tokens: dict[int, int]
    waiting: list[int]
    notices: list[str] = field(default_factory=list)


class Replica:
    """Works on a job until all of it is committed; the other methods are called meanwhile."""

    def __init__(self) -> None:
        """Begin with nothing: whatever can go wrong goes wrong in `work`."""
        self._root: Root | None = None
        self._claims: Claims | None = None
        self._gone: list[Owner] = []
        self._tokens: dict[int, int] = {}
        self._waiting: list[int] = []
        self._notices: list[str] = []
        self._ending = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    def owner(self) -> Owner:
        """The process that this replica is."""
        return Owner.current()

    def work(self, shared: SharedJob) -> None:
        """Work until every shard that the job wants is committed, by whomever.

        Raises:
            InputError: this machine does not see the driver's data set or model, or has another
                version of a package.
            Eagle3DataError: what `extract` raises.
        """
        self._idle.clear()
        try:
            root = self._root = Root(shared.url)
            _require_same_environment(shared)
            _require_same_set(root, shared)
            _require_model(shared.job.model)
            with Claims(root) as claims:
                self._claims = claims
                for owner in list(self._gone):
                    claims.know_gone(owner)
                do_job(root, claims, shared.job, self._on_tokens, self._on_wait, self._on_notice)
        finally:
            self._idle.set()

    def progress(self) -> Progress:
        """How far it is."""
        return Progress(
            tokens=dict(self._tokens),
            waiting=list(self._waiting),
            notices=list(self._notices),
        )

    def know_gone(self, owners: list[Owner]) -> None:
        """Learn that processes have ended, so that what they had claimed is taken over at once."""
        self._gone += owners
        # `work` sets it before it reads the list, so no owner is missed by both.
        if self._claims is not None:
            for owner in owners:
                self._claims.know_gone(owner)

    def end(self) -> None:
        """Drop the shard in hand, let go of the claims, end the engine's processes, and sweep.

        A replica that is busy elsewhere (a model that loads) is not waited for longer than
        `LEAVE_SECONDS`; what it has claimed then goes stale.
        """
        self._ending.set()
        is_idle = self._idle.wait(LEAVE_SECONDS)
        end_own_children()
        if is_idle and self._root is not None:
            # Only this machine knows which of its processes have ended and left something.
            self._root.sweep()

    def _on_tokens(self, tokens: int, shard: int) -> None:
        self._require_wanted()
        self._waiting = []
        self._tokens[shard] = self._tokens.get(shard, 0) + tokens

    def _on_wait(self, shards: list[int]) -> None:
        self._require_wanted()
        self._waiting = shards

    def _on_notice(self, text: str) -> None:
        self._notices.append(text)

    def _require_wanted(self) -> None:
        if self._ending.is_set():
            raise _NotWantedError("the driver has ended this replica")


class _NotWantedError(Exception):
    """Takes a replica out of its work; nobody waits for what `work` returns then."""


def manifest_digest(root: Root) -> str:
    """Digest of the manifest at a root, its date and host included.

    Raises:
        InputError, ManifestError: there is none.
    """
    return json_digest(layout.read_manifest(root).model_dump(mode="json"))


def environment(engine: str) -> dict[str, str]:
    """Versions of what the states depend on, in this process."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "eagle3data": version("eagle3data"),
        "engine": engine_version(engine),
    }


def _require_same_environment(shared: SharedJob) -> None:
    here = environment(shared.job.plan.manifest.capture.engine)
    differing = [name for name in here if here[name] != shared.environment.get(name)]
    if differing:
        found = ", ".join(
            f"{name} {here[name]} (the driver has {shared.environment.get(name)})"
            for name in differing
        )
        raise InputError(
            f"{platform.node()} has {found}. With --ray every node needs the driver's environment."
        )


def _require_same_set(root: Root, shared: SharedJob) -> None:
    try:
        is_same = manifest_digest(root) == shared.manifest
        found = "holds another data set there"
    except (InputError, ManifestError):
        is_same, found = False, "sees no data set there"
    if not is_same:
        raise InputError(
            f"{root.url} is not shared by the nodes: {platform.node()} {found}. With --ray, --out "
            "has to be a folder that every node sees under the same path, or a bucket."
        )


def _require_model(model: str) -> None:
    path = Path(model)
    if path.is_absolute() and not path.is_dir():
        raise InputError(
            f"the model's folder {model} is not there on {platform.node()}. With --ray every node "
            "needs it under the same path."
        )
