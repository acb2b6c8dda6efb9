"""What the tests of copies share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage.root import Root
from eagle3data.transfer.copy import CopyOptions, plan_copy
from eagle3data.transfer.job import CopyReport
from tests.support import random_samples

_NOT_COPIED = ("claims/", ".tmp/")


def copy_set(sources: str | Sequence[str], url: str | Path, options: CopyOptions) -> CopyReport:
    """Copy without showing anything; a wait for another process fails."""
    listed = [sources] if isinstance(sources, str) else list(sources)

    def on_wait(shards: list[int]) -> None:
        raise TimeoutError(shards)

    return plan_copy(listed, str(url), options).run(lambda nbytes: None, on_wait)


def valid_samples(count: int, manifest: Manifest) -> list[Sample]:
    """Random samples in which `validate` finds nothing: each has a token with loss."""
    samples = random_samples(count, manifest)
    for sample in samples:
        sample.loss_mask[0] = 1
    return samples


def files(folder: str | Path) -> dict[str, bytes]:
    """Every file of a local set by name, but for claims and what killed writers left."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }
    return {name: data for name, data in found.items() if not name.startswith(_NOT_COPIED)}


def array_objects(folder: str | Path) -> dict[str, bytes]:
    """Every shard object of a local set by name."""
    return {name: data for name, data in files(folder).items() if "/c/" in name}


def flip_bit(root: Root, name: str, at: int) -> None:
    """Damage one byte of a local object."""
    path = Path(root.join(name))
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
