"""Which samples of which data sets go into a copy that is written anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.where import selected
from eagle3data.schema.errors import InputError, LayerError, MismatchError
from eagle3data.schema.layers import Numbering, parse_layers
from eagle3data.schema.manifest import Manifest
from eagle3data.storage.tombstones import list_tombstones, sample_key


@dataclass(frozen=True)
class Picked:
    """One sample of a copy: which source has it, and at which position."""

    source: int
    position: int


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Samples in the order in which the copy will hold them.

    Attributes:
        sources: the data sets they come from.
        manifest: of the copy, but for its codec, axis, plan and provenance.
        samples: what was picked.
        sample_ids: its ids.
        lengths: its tokens.
        checksums: CRC32C of its token ids.
        dropped: samples left out because they were named.
        duplicates: samples left out because an earlier source has their ids.
    """

    sources: Sequence[Dataset]
    manifest: Manifest
    samples: list[Picked]
    sample_ids: list[str]
    lengths: list[int]
    checksums: list[int]
    dropped: int
    duplicates: int


def select(
    sources: Sequence[Dataset],
    *,
    layers: str | None,
    where: str | None,
    drop: Collection[str],
    skip_duplicates: bool,
) -> Selection:
    """Pick samples, in the order of the sources and of their indexes.

    Args:
        sources: at least one.
        layers: ids to keep, separated by commas; all by default.
        where: see `readers.where`.
        drop: ids to leave out.
        skip_duplicates: of samples with one id keep the first, instead of refusing them.

    Raises:
        MismatchError: sources of another model, capture or tokenizer than the first.
        LayerError: layers that the sources don't have.
        InputError: an id to drop that no source has, ids that occur twice, a condition that is
            none, or nothing left.
    """
    manifest = _common_manifest(sources, layers)
    leave_out = set(drop)
    _require_known(sources, leave_out)
    first: dict[str, int] = {}
    picked: list[Picked] = []
    repeated: list[str] = []
    dropped = 0
    for number, source in enumerate(sources):
        for position, sample_id in _candidates(source, where):
            if sample_id in leave_out:
                dropped += 1
            elif sample_id in first:
                repeated.append(sample_id)
            else:
                first[sample_id] = number
                picked.append(Picked(number, position))
    if repeated and not skip_duplicates:
        raise InputError(
            f"{len(repeated)} samples occur twice by their id, among them {_some(repeated)}; the "
            f"first is also in {sources[first[repeated[0]]].url}. Nothing was written: "
            "--duplicates skip keeps the first of each."
        )
    if not picked:
        raise InputError("no sample is left to copy. Nothing was written.")
    lengths, checksums = (_column(sources, picked, name) for name in ("length", "tokens_crc32c"))
    return Selection(
        sources=sources,
        manifest=manifest,
        samples=picked,
        sample_ids=list(first),
        lengths=lengths,
        checksums=checksums,
        dropped=dropped,
        duplicates=len(repeated),
    )


def _common_manifest(sources: Sequence[Dataset], layers: str | None) -> Manifest:
    """The first source's, with the layers that are kept, after comparing the others with it."""
    manifests = [_with_layers(source, layers) for source in sources]
    first = manifests[0]
    for source, manifest in zip(sources[1:], manifests[1:], strict=True):
        differences = [
            difference
            for difference in first.differences(manifest)
            if not difference.startswith(("storage.codec:", "storage.shard_tokens:",
                                          "storage.chunk_tokens:", "plan_digest:"))
        ]  # fmt: skip
        if differences:
            raise MismatchError(
                f"{sources[0].url} and {source.url} can't be merged; they differ in "
                f"{'; '.join(differences)}. Nothing was written."
            )
    common = {
        name: value
        for name, value in first.extensions.items()
        if all(manifest.extensions.get(name) == value for manifest in manifests)
    }
    return first.model_copy(update={"extensions": common})


def _with_layers(source: Dataset, layers: str | None) -> Manifest:
    manifest = source.manifest
    if layers is None:
        return manifest
    kept = parse_layers(layers, manifest.final_layer, Numbering.CANONICAL)
    missing = sorted(set(kept) - set(manifest.layers))
    if missing:
        raise LayerError(
            f"--layers {layers}: {source.url} has layers "
            f"{','.join(map(str, manifest.layers))}, not {','.join(map(str, missing))}."
        )
    capture = manifest.capture.model_copy(update={"layers": kept})
    return manifest.model_copy(update={"capture": capture})


def _require_known(sources: Sequence[Dataset], drop: Collection[str]) -> None:
    """Refuse to drop what isn't there: a misspelt id would leave the sample in the copy.

    A sample that a tombstone hides is there, and no copy that is written anew holds it.
    """
    unknown = set(drop)
    for source in sources:
        unknown.difference_update(map(str, source.index["sample_id"].to_pylist()))
    if not unknown:
        return
    hidden = {stone.key for source in sources for stone in list_tombstones(source.root)}
    unknown = {name for name in unknown if sample_key(name) not in hidden}
    if unknown:
        raise InputError(
            f"--drop: no source has {_some(sorted(unknown))}. Nothing was written; sample ids are "
            "listed in the index's column sample_id."
        )


def _candidates(source: Dataset, where: str | None) -> Iterator[tuple[int, str]]:
    ids = source.index["sample_id"].to_pylist()
    if where is None:
        yield from enumerate(map(str, ids))
        return
    chosen = selected(source.index, where, source.manifest.layers)
    for position in np.flatnonzero(chosen).tolist():
        yield position, str(ids[position])


def _column(sources: Sequence[Dataset], picked: Sequence[Picked], name: str) -> list[int]:
    columns = [source.index[name].to_numpy() for source in sources]
    return [int(columns[pick.source][pick.position]) for pick in picked]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
