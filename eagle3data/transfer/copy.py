"""Copy data sets: which of the two ways, and what is refused before anything is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3data.readers.dataset import open_dataset
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import Codec
from eagle3data.storage.root import Root
from eagle3data.transfer.hub import HubCopy
from eagle3data.transfer.job import CopyJob
from eagle3data.transfer.rewrite import Rewrite
from eagle3data.transfer.selection import select
from eagle3data.transfer.verbatim import VerbatimCopy
from eagle3data.writers.data_set import require_place


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """What a person chooses about a copy.

    Attributes:
        codec: storage profile of the copy; the source's by default.
        where: condition over the index's columns that a sample has to fulfil.
        drop: ids of samples to leave out.
        layers: canonical ids to keep, separated by commas; all by default.
        skip_duplicates: of samples with one id keep the first, instead of refusing them.
        skip_damaged: put samples that can't be read in the copy's ledger, and go on.
        compact: write anew, so that what tombstones hide is not in the copy.
    """

    codec: str | None = None
    where: str | None = None
    drop: Sequence[str] = ()
    layers: str | None = None
    skip_duplicates: bool = False
    skip_damaged: bool = False
    compact: bool = False


def plan_copy(sources: Sequence[str], url: str, options: CopyOptions) -> CopyJob:
    """Find out what a copy will take; reads indexes, writes nothing.

    One source of which everything is wanted as it is stored is copied byte for byte, and is the
    same data set afterwards. Everything else is written anew. So are samples of which damaged
    ones are to be skipped: bytes can't be the same without them.

    Args:
        sources: URLs of data sets.
        url: of the copy; new, or an unfinished copy of the same.
        options: see there.

    Raises:
        InputError, LayerError: options that don't fit the sources, a target that holds something
            else or lies in a source.
        MismatchError: sources that don't belong together, or a target with another data set.
        CorruptionError: an index part of a source that can't be read.
    """
    target = Root(url)
    for source in sources:
        _require_apart(Root(source), target)
    to_hub = url.startswith("hf://")
    if not to_hub:
        require_place(target)
    opened = [open_dataset(source) for source in sources]
    codec = _codec(options.codec)
    as_it_is = (
        len(opened) == 1
        and codec in {None, opened[0].manifest.storage.codec}
        and options.where is None
        and options.layers is None
        and not (options.drop or options.skip_damaged or options.compact)
    )
    if to_hub:
        if not as_it_is:
            raise InputError(
                f"{url}: a hub takes one set as it is. Nothing was uploaded: copy to a folder or a "
                "bucket with these choices, then upload that."
            )
        return HubCopy(opened[0], url)
    if as_it_is:
        return VerbatimCopy(opened[0], target)
    selection = select(
        opened,
        layers=options.layers,
        where=options.where,
        drop=options.drop,
        skip_duplicates=options.skip_duplicates,
    )
    return Rewrite(
        selection,
        target,
        codec=codec,
        where=options.where,
        skip_damaged=options.skip_damaged,
    )


def _codec(name: str | None) -> Codec | None:
    if name is None:
        return None
    try:
        return Codec(name)
    except ValueError:
        raise InputError(f"--codec {name}: expected {', '.join(Codec)}.") from None


def _require_apart(source: Root, target: Root) -> None:
    """Refuse a copy into itself.

    Raises:
        InputError: one lies in the other, or they are the same.
    """
    one, other = _place(source), _place(target)
    if one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/"):
        raise InputError(
            f"{target.url} and {source.url} are the same place, or one lies in the other. Nothing "
            "was written: choose a place outside."
        )


def _place(root: Root) -> str:
    path = os.path.realpath(root.path) if root.is_local else root.path
    return str(root.fs.unstrip_protocol(path)).rstrip("/")
