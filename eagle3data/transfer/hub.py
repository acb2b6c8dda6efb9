"""Uploads of data sets to the Hugging Face Hub: whole shards a commit, so every revision is a set.

Each object is checked against its checksums before the hub gets it, and the hub compares what it
gets with a SHA-256. A run that is killed leaves a smaller set, which the next run completes; what
was uploaded and not committed is not sent again, as the hub knows its contents.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from eagle3data.readers import card
from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import InputError, MismatchError
from eagle3data.storage import layout
from eagle3data.storage.gathered import read_parts, write_gathered
from eagle3data.storage.local import Buffer
from eagle3data.storage.parallel import run_all
from eagle3data.storage.root import Root
from eagle3data.transfer.job import CopyReport, OnBytes, Preview
from eagle3data.transfer.objects import ObjectCopy, ObjectFacts
from eagle3data.transfer.verbatim_source import STATES_GROUP, VerbatimSource
from eagle3data.writers.shared_shards import OnWait

COMMIT_BYTES = 8 << 30
COMMIT_SHARDS = 64
"""A commit is closed with either; the hub allows some hundred an hour. Of a source that is not on
a local disk, so many bytes are kept in a temporary folder."""

_OWN_FILES = {".gitattributes", card.NAME}
_URL = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>refs/(pr|convert)/[^/]+|[^/]+))?"
    r"(/(?P<folder>.+))?"
)


@dataclass(frozen=True)
class HubPlace:
    """Where a set lies in a repository.

    Attributes:
        repo: `namespace/name` of a repository of data sets.
        revision: branch; None is the repository's own choice.
        folder: of the set, `/` at its end; empty for the repository's root.
    """

    repo: str
    revision: str | None
    folder: str

    @classmethod
    def of(cls, url: str) -> Self:
        """The place that a URL names.

        Raises:
            InputError: it names no repository of data sets.
        """
        found = _URL.fullmatch(url.rstrip("/"))
        if found is None:
            raise InputError(
                f"{url} names no repository of data sets: expected "
                "hf://datasets/NAMESPACE/NAME, then @BRANCH and /FOLDER as you like."
            )
        revision = found["revision"]
        folder = f"{found['folder']}/" if found["folder"] else ""
        return cls(found["repo"], revision and revision.replace("%2F", "/"), folder)


class HubCopy:
    """Makes a repository hold a data set, the same to the byte."""

    def __init__(self, source: Dataset, url: str) -> None:
        """Compare what is in the repository with the source; writes nothing.

        Raises:
            InputError: the URL names no repository of data sets, or one that holds something else.
            MismatchError: it holds another data set, or a copy of an earlier state of this one
                that can't be continued.
            CorruptionError: an index part of the source that can't be read.
        """
        self._place = HubPlace.of(url)
        self._source, self._target = VerbatimSource(source), Root(url)
        with _explained(url):
            there = layout.committed_shards(self._target)
            self._require_own_place()
            with ThreadPoolExecutor(self._target.threads) as pool:
                if self._target.exists(layout.GROUP):
                    self._source.require_same(self._target, there, pool)
        missing = sorted(set(self._source.shards) - set(there))
        with ThreadPoolExecutor(source.root.threads) as pool:
            sizes = pool.map(self._source.shard_bytes, missing)
            self._missing = dict(zip(missing, sizes, strict=True))
        nbytes = sum(self._missing.values())
        self.preview = Preview(
            byte_for_byte=True,
            samples=len(source),
            tokens=source.tokens,
            shards=len(self._source.shards),
            missing=len(self._missing),
            nbytes=nbytes,
            work_bytes=nbytes,
            free_bytes=None,
        )

    def run(self, on_bytes: OnBytes, on_wait: OnWait) -> CopyReport:  # noqa: ARG002
        """Upload what is missing; see `CopyJob.run`. A new repository is made private.

        Raises:
            MismatchError: somebody else committed to the repository meanwhile.
        """
        source = self._source.dataset
        with _explained(self._target.url):
            hub = _Commits(self._place, self._target.url)
            hub.commit("Add the data set's documents", self._documents())
            for group in self._groups():
                self._upload(group, hub, on_bytes)
            with tempfile.TemporaryDirectory(prefix="eagle3data-hub-") as folder:
                gathered = Path(folder) / "all.arrow"
                write_gathered(str(gathered), read_parts(source.root, self._source.shards))
                hub.commit("Gather the index", {layout.ALL_PARTS: gathered, **self._card()})
            self._target.fs.invalidate_cache()
        return CopyReport(
            samples=len(source),
            tokens=source.tokens,
            shards=len(layout.committed_shards(self._target)),
            written=len(self._missing),
            failed=0,
            generation=source.generation,
        )

    def _require_own_place(self) -> None:
        foreign = [name for name in self._target.names() if name not in _OWN_FILES]
        if foreign and not self._target.exists(layout.GROUP):
            raise InputError(
                f"{self._target.url} holds something else ({', '.join(foreign[:3])}) and no data "
                "set. Nothing was uploaded: choose another repository, or a folder in it."
            )

    def _documents(self) -> dict[str, bytes]:
        """Everything that is not a shard; tombstones, so that no revision shows what they hide."""
        source = self._source
        names = [layout.GROUP, *source.plan_segments(), *source.notes()]
        if source.dataset.root.exists(STATES_GROUP):
            names.append(STATES_GROUP)
        arrays = layout.array_names(source.manifest)
        return {
            **{name: source.read(name) for name in names},
            **{layout.array_document(array): source.array_document(array) for array in arrays},
        }

    def _card(self) -> dict[str, bytes]:
        """The source's card by its name; nothing where somebody else's is there."""
        if self._target.exists(card.NAME):
            there = self._target.read(card.NAME).decode("utf-8", "replace")
            if not card.is_ours(there):
                return {}
        source = self._source.dataset
        return {card.NAME: (card.read_card(source) or card.render_card(source)).encode()}

    def _groups(self) -> Iterator[list[int]]:
        """Missing shards, as many at a time as make a commit."""
        group: list[int] = []
        nbytes = 0
        for shard, size in self._missing.items():
            group.append(shard)
            nbytes += size
            if nbytes >= COMMIT_BYTES or len(group) == COMMIT_SHARDS:
                yield group
                group, nbytes = [], 0
        if group:
            yield group

    def _upload(self, group: list[int], hub: _Commits, on_bytes: OnBytes) -> None:
        """Check and upload some shards, then commit them with their index parts."""
        threads = self._source.dataset.root.threads
        with (
            tempfile.TemporaryDirectory(prefix="eagle3data-hub-") as folder,
            ThreadPoolExecutor(threads, "eagle3data-read") as pool,
        ):
            for shard in group:
                part, objects = self._source.shard(shard)
                hub.upload(self._checked(objects, Path(folder), pool))
                hub.add(layout.index_part(shard), part)
                on_bytes(sum(facts.nbytes for facts in objects))
            hub.commit(f"Add shards {group[0]} to {group[-1]}")

    def _checked(self, objects: list[ObjectFacts], folder: Path, pool: Executor) -> dict[str, Path]:
        """Files with the objects' bytes, by name, all compared with their checksums."""
        root = self._source.dataset.root
        files = {
            facts.path: Path(root.join(facts.path))
            if root.is_local
            else folder / facts.path.replace("/", "-")
            for facts in objects
        }

        def check(facts: ObjectFacts) -> None:
            with _CheckedFile(None if root.is_local else files[facts.path]) as sink:
                ObjectCopy(self._source.dataset, facts).write_to(sink, pool, lambda _: None)

        with ThreadPoolExecutor(root.threads, "eagle3data-check") as checks:
            run_all(checks, [partial(check, facts) for facts in objects])
        return files


class _Commits:
    """Commits to one branch, each on top of the one before, or an error."""

    def __init__(self, place: HubPlace, url: str) -> None:
        """Find the branch, or make the repository."""
        from huggingface_hub import HfApi

        self._api: Any = HfApi()
        self._place, self._url = place, url
        self._repo = {"repo_id": place.repo, "repo_type": "dataset"}
        self._waiting: list[Any] = []
        self._api.create_repo(**self._repo, private=True, exist_ok=True)
        self._head = self._api.repo_info(**self._repo, revision=place.revision).sha

    def upload(self, files: Mapping[str, Path]) -> None:
        """Send contents, to be part of the next commit; the files stay until then."""
        found = [self.add(name, path) for name, path in files.items()]
        self._api.preupload_lfs_files(
            additions=found, revision=self._place.revision, **self._repo, free_memory=False
        )

    def add(self, name: str, content: bytes | Path) -> Any:
        """Put something into the next commit; returns the hub's own word for it."""
        from huggingface_hub import CommitOperationAdd

        operation = CommitOperationAdd(
            self._place.folder + name, content if isinstance(content, bytes) else str(content)
        )
        self._waiting.append(operation)
        return operation

    def commit(self, message: str, more: Mapping[str, bytes | Path] | None = None) -> None:
        """Commit what waits and `more`; contents that are there already make no commit.

        Raises:
            MismatchError: the branch is no longer where this object left it.
        """
        from huggingface_hub.errors import HfHubHTTPError

        for name, content in (more or {}).items():
            self.add(name, content)
        try:
            done = self._api.create_commit(
                operations=self._waiting,
                commit_message=message,
                revision=self._place.revision,
                parent_commit=self._head,
                **self._repo,
            )
        except HfHubHTTPError as error:
            if error.response.status_code in {409, 412}:
                raise MismatchError(
                    f"{self._url} was changed by somebody else meanwhile. What was committed stays "
                    "as it is: run the same command again to continue."
                ) from None
            raise
        self._head, self._waiting = done.oid, []


class _CheckedFile:
    """Where checked bytes go: a file, or nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, parts: Sequence[Buffer]) -> None:
        if self._file is not None:
            self._file.writelines(parts)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """What the hub refuses, as an error that says what to do.

    Raises:
        InputError: no permission, no connection, no such branch.
    """
    from huggingface_hub.errors import HfHubHTTPError

    # Its next base is the error of the HTTP library that this version of the client is built on.
    http_error = HfHubHTTPError.__mro__[1]
    try:
        yield
    except (http_error, ConnectionError) as error:
        raise InputError(
            f"{url}: the hub did not do it: {error}. Log in with `hf auth login` or set HF_TOKEN "
            "to a token that may write there; run the same command again to continue."
        ) from None
