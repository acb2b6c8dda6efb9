"""What belongs to nobody: orphans, strays, temporary files, uploads, claims, plan segments."""

from __future__ import annotations

import datetime
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.claim_watch import SeenClaim, Standing
from eagle3data.storage.claims import shard_name
from eagle3data.storage.local import TEMPORARY
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root
from eagle3data.validation.repair_actions import Action, Proposal

FORGOTTEN_SECONDS = 24 * 3600
"""Temporary files and uploads of unknown owners that are older are of no use to anybody."""


def nothing() -> None:
    """Do nothing: a claim that is taken over and released is gone."""


def release_claims(claims: Iterable[SeenClaim], found: Proposal) -> None:
    """Take over and release what dead processes hold; say which claims stay."""
    for claim in claims:
        if claim.standing is Standing.ABANDONED:
            found.actions.append(
                Action(
                    kind="release_claim",
                    place=claim.state.object,
                    why=f"its owner is gone: {claim}.",
                    do=nothing,
                    claim=claim.state.name,
                )
            )
        elif claim.standing is Standing.LIVE:
            found.left_alone.append(f"{claim.state.object}: somebody works on it ({claim}).")
        else:
            found.left_alone.append(
                f"{claim.state.object}: another machine's ({claim}), not watched long enough to "
                "know whether that lives."
            )


def list_array_objects(root: Root, manifest: Manifest) -> list[str]:
    """Names of all objects below the arrays' `c/`."""
    names = []
    for array in layout.array_names(manifest):
        base = root.join(f"{array}/c")
        root.fs.invalidate_cache(base)
        names += [f"{array}/c{str(path).removeprefix(base)}" for path in root.fs.find(base)]
    return names


def remove_orphans(
    root: Root, manifest: Manifest, objects: Iterable[str], committed: Collection[int]
) -> Iterator[Action]:
    """Remove array objects without an index part, and what is no shard's object at all.

    Args:
        root: of the data set.
        manifest: its manifest.
        objects: listed before the claims and the parts were: so of an object without a part
            whose shard nobody has claimed, it is sure that nobody is about to commit it.
        committed: shards with a whole index part.
    """
    for name in objects:
        shard = _shard_of(manifest, name)
        if shard is None:
            yield Action(
                kind="remove_stray",
                place=name,
                why="no shard has an object of this name.",
                do=partial(root.delete, name),
            )
        elif shard not in committed:
            yield Action(
                kind="remove_orphan",
                place=name,
                why=f"shard {shard} is not committed, and nobody works on it.",
                do=partial(_delete_uncommitted, root, shard, name),
                claim=shard_name(shard),
                shard=shard,
            )


def _shard_of(manifest: Manifest, name: str) -> int | None:
    array, _, rest = name.rpartition("/c/")
    number = rest.partition("/")[0]
    if not re.fullmatch(r"[0-9]+", number) or array not in layout.array_names(manifest):
        return None
    return int(number) if layout.shard_object(array, int(number)) == name else None


def _delete_uncommitted(root: Root, shard: int, name: str) -> None:
    if not root.exists(layout.index_part(shard)):
        root.delete(name)


def remove_segments(root: Root, committed: Collection[int]) -> Iterator[Action]:
    """Remove `DatasetWriter`'s plan segments of shards that were not committed.

    Only for a plan that `PlanSeen.is_by_shard`: what `extract` has planned stays to be done.
    """
    for name in root.names("plan"):
        if not re.fullmatch(r"[0-9]{4,}\.arrow", name) or int(name[:-6]) in committed:
            continue
        shard = int(name[:-6])
        yield Action(
            kind="remove_segment",
            place=f"plan/{name}",
            why=f"it plans shard {shard}, which was not committed; who appends plans it anew.",
            do=partial(_delete_uncommitted, root, shard, f"plan/{name}"),
            claim=shard_name(shard),
            shard=shard,
        )


def remove_temporary(root: Root, found: Proposal) -> None:
    """Remove what local writers left half written, once they are gone or have been silent long."""
    if not root.is_local:
        return
    for name in root.names(TEMPORARY):
        place = Path(root.join(f"{TEMPORARY}/{name}"))
        owner = Owner.from_token(name)
        if owner is not None and owner.is_here and not owner.is_gone:
            continue
        age = time.time() - _last_change(place)
        who = owner or "unknown"
        if (owner is not None and owner.is_gone) or age > FORGOTTEN_SECONDS:
            found.actions.append(
                Action(
                    kind="remove_temporary",
                    place=f"{TEMPORARY}/{name}",
                    why=f"half-written objects of {who}, which is gone, {age / 3600:.1f} h old.",
                    do=partial(shutil.rmtree, place, ignore_errors=True),
                )
            )
        else:
            found.left_alone.append(
                f"{TEMPORARY}/{name}: half-written objects of {who}, of which nothing is known; "
                "removed when they are a day old."
            )


def _last_change(place: Path) -> float:
    try:
        entries = [place, *place.iterdir()] if place.is_dir() else [place]
        return max(entry.stat().st_mtime for entry in entries)
    except FileNotFoundError:
        return time.time()  # its owner works


def abort_uploads(root: Root, found: Proposal) -> None:
    """Abort multipart uploads that nobody has finished for a day, where the store lists them."""
    if not hasattr(root.fs, "call_s3"):
        return
    bucket, _, folder = root.path.partition("/")
    now = datetime.datetime.now(datetime.UTC)
    try:
        uploads = list(_uploads(root.fs, bucket, f"{folder}/"))
    except (OSError, NotImplementedError) as error:
        found.left_alone.append(f"unfinished uploads: the store doesn't list them ({error}).")
        return
    for upload in uploads:
        age = (now - upload["Initiated"]).total_seconds()
        place = f"{upload['Key'].removeprefix(folder + '/')} (upload {upload['UploadId']})"
        if age < FORGOTTEN_SECONDS:
            found.left_alone.append(f"{place}: begun {age / 3600:.1f} h ago; aborted after a day.")
            continue
        found.actions.append(
            Action(
                kind="abort_upload",
                place=place,
                why=f"an upload begun {age / 3600:,.0f} h ago and never finished.",
                do=partial(_abort, root.fs, bucket, upload["Key"], upload["UploadId"]),
            )
        )


def _uploads(fs: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    marker: dict[str, str] = {}
    while True:
        answer = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **marker)
        yield from answer.get("Uploads", [])
        if not answer.get("IsTruncated"):
            return
        marker = {
            "KeyMarker": answer["NextKeyMarker"],
            "UploadIdMarker": answer["NextUploadIdMarker"],
        }


def _abort(fs: Any, bucket: str, key: str, upload_id: str) -> None:
    try:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)
    except FileNotFoundError:
        return  # finished or aborted meanwhile
