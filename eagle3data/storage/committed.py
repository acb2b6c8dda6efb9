"""All committed rows of a data set: its gathered index, and the parts that are newer than it.

Where `index/all.arrow` can't be mapped or can't be renewed (an object store, a network mount, a
folder of another's), the same file is kept in the user's cache. There it also says from which
listing it was made: names, sizes and identities of the parts, so a part that was removed and done
again makes it stale.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from eagle3data.schema.digest import sequence_digest
from eagle3data.storage import layout
from eagle3data.storage.gathered import (
    Parts,
    Piece,
    coalesced,
    merged,
    read_gathered,
    read_parts,
    write_gathered,
)
from eagle3data.storage.mounts import is_local_disk
from eagle3data.storage.root import Root, StoredObject

_GATHERED = layout.ALL_PARTS.rpartition("/")[2]
_WORTH_PARTS = 64
_WORTH_BYTES = 32 << 20
"""What is read again at every opening before the user's cache is used."""
_COPY_BYTES = 16 << 20


@dataclass(frozen=True)
class _Listing:
    """What lies in `index/`: shards, identity of each part, bytes of the gathered file or None."""

    shards: list[int]
    identities: Mapping[int, str]
    gathered_bytes: int | None

    def digest(self, shards: Sequence[int]) -> str:
        """Digest of these parts' names and identities."""
        return sequence_digest(f"{shard} {self.identities.get(shard)}" for shard in shards)


def read_committed(root: Root) -> list[Piece]:
    """All committed rows in token order, in few pieces; what can be is mapped, not read.

    Raises:
        CorruptionError: a part that is gone, truncated or not as it was committed.
    """
    if _keeps_its_own(root):
        shards = layout.committed_shards(root)
        held = _still_there(gathered_pieces(root), shards)
    else:
        listing = _list(root)
        shards = listing.shards
        held = _through_cache(root, listing)
    newer = read_parts(root, _missing(held, shards))
    runs = groupby(merged(held, newer), key=lambda piece: piece.held)
    return [piece for is_held, run in runs for piece in (run if is_held else coalesced(run))]


def gather(root: Root) -> Iterator[Piece] | None:
    """What `index/all.arrow` should hold; None where it holds it already.

    Raises:
        CorruptionError: as `read_committed`.
    """
    shards = layout.committed_shards(root)
    held = _still_there(gathered_pieces(root), shards)
    missing = _missing(held, shards)
    return merged(held, read_parts(root, missing)) if missing else None


def gathered_pieces(root: Root) -> list[Piece]:
    """What `index/all.arrow` holds, true or not; nothing where it is damaged or not there."""
    with _fetched(root) as path:
        return _mapped(path)[0]


def _keeps_its_own(root: Root) -> bool:
    return (
        root.is_local
        and is_local_disk(root.path)
        and os.access(root.join("index"), os.W_OK, effective_ids=True)
    )


def _still_there(held: list[Piece], shards: Sequence[int]) -> list[Piece]:
    """The pieces if every part of them exists: after a repair the file is no longer true."""
    return held if set(_shards_of(held)) <= set(shards) else []


def _missing(held: list[Piece], shards: Sequence[int]) -> list[int]:
    there = set(_shards_of(held))
    return [shard for shard in shards if shard not in there]


def _shards_of(pieces: list[Piece]) -> list[int]:
    shards: list[int] = Parts.joined(piece.parts for piece in pieces).shards.tolist()
    return shards


def _mapped(path: Path) -> tuple[list[Piece], str | None]:
    """The pieces of a gathered file on a local disk; none where there is no whole one."""
    try:
        return read_gathered(pa.memory_map(str(path))) or ([], None)
    except (OSError, pa.ArrowException):
        return [], None


def _list(root: Root) -> _Listing:
    try:
        found = root.fs.ls(root.join("index"), detail=True, refresh=True)
    except (FileNotFoundError, NotADirectoryError):
        found = []
    entries = {info["name"].rstrip("/").rpartition("/")[2]: info for info in found}
    gathered = entries.get(_GATHERED)
    keys = ("ETag", "ino", "mtime", "LastModified", "created", "size")
    return _Listing(
        shards=layout.shards_of(entries),
        identities={
            int(name[:-6]): " ".join(str(entries[name].get(key)) for key in keys)
            for name in entries
            if layout.shards_of([name])
        },
        gathered_bytes=None if gathered is None else int(gathered["size"]),
    )


def _through_cache(root: Root, listing: _Listing) -> list[Piece]:
    cached = _cache_file(root)
    held, made_from = _mapped(cached)
    if held and (
        made_from != listing.digest(_shards_of(held)) or not _still_there(held, listing.shards)
    ):
        held = []
    if len(_missing(held, listing.shards)) <= _WORTH_PARTS and (held or not listing.gathered_bytes):
        return held
    if not held and listing.gathered_bytes:
        held = _still_there(gathered_pieces(root), listing.shards)
    missing = _missing(held, listing.shards)
    if len(missing) > _WORTH_PARTS or (listing.gathered_bytes or 0) > _WORTH_BYTES:
        pieces = merged(held, read_parts(root, missing))
        return _cache(cached, pieces, listing.digest(listing.shards)) or held
    return held


def _cache_file(root: Root) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    url = str(root.fs.unstrip_protocol(root.path))
    return base / "eagle3data" / hashlib.sha256(url.encode()).hexdigest()[:16] / _GATHERED


def _cache(path: Path, pieces: Iterator[Piece], made_from: str) -> list[Piece]:
    """Put a gathered file into the cache and map it; nothing where the cache can't be written."""
    temporary = path.with_name(uuid.uuid4().hex)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            write_gathered(str(temporary), pieces, made_from)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return []
    return _mapped(path)[0]


@contextmanager
def _fetched(root: Root) -> Iterator[Path]:
    """A path to map `index/all.arrow` from; a copy, gone with its last map, if it isn't local."""
    if root.is_local and is_local_disk(root.path):
        yield Path(root.join(layout.ALL_PARTS))
        return
    with tempfile.TemporaryDirectory(prefix="eagle3data-") as folder:
        path = Path(folder) / _GATHERED
        with suppress(FileNotFoundError):
            _copy(root.open(layout.ALL_PARTS), path)
        yield path


def _copy(stored: StoredObject, path: Path) -> None:
    with path.open("wb") as file:
        for start in range(0, stored.size, _COPY_BYTES):
            file.write(stored.read(start, start + _COPY_BYTES).data)
