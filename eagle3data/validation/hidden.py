"""Rows without those that tombstones hide: what is hidden is neither read nor reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from eagle3data.storage.tombstones import Tombstone, sample_key


def keys_by_shard(tombstones: Iterable[Tombstone]) -> dict[int, set[str]]:
    """The keys of the hidden samples of each shard that has any."""
    keys: dict[int, set[str]] = {}
    for tombstone in tombstones:
        keys.setdefault(tombstone.shard, set()).add(tombstone.key)
    return keys


def visible_rows(table: pa.Table, keys: Collection[str]) -> pa.Table:
    """The rows of one index part that no tombstone hides.

    Args:
        table: with a column `sample_id`.
        keys: of the shard's tombstones.
    """
    if not keys:
        return table
    names = table["sample_id"].to_pylist()
    return table.filter(pa.array([sample_key(str(name)) not in keys for name in names]))
