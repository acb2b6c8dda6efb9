"""The shape of a data set in a few numbers: what a report needs to say where things lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eagle3data.schema.manifest import Manifest

_BINS = 32


@dataclass(kw_only=True)
class Overview:
    """What was looked at.

    Attributes:
        target: name of the model that the states are of.
        layers: captured layers, canonical ids.
        final_layer: id of the state that the target's norm and head read; captured or not.
        dtype, codec: as stored.
        shards: committed ones.
        shard_tokens: room of a shard on the token axis, tokens.
        end: past-the-last token of the axis that a sample lies at.
        length_edges: `[bins + 1]` lengths in tokens.
        length_counts: `[bins]` samples from an edge up to the next.
        places: for each sample that a finding names, its first and past-the-last token on the axis.
    """

    target: str
    layers: list[int]
    final_layer: int
    dtype: str
    codec: str
    shards: int
    shard_tokens: int
    end: int
    length_edges: list[int] = field(default_factory=list)
    length_counts: list[int] = field(default_factory=list)
    places: dict[str, list[int]] = field(default_factory=dict)

    def locate(self, sample_ids: Iterable[str], rows: pa.Table) -> None:
        """Note where some samples lie.

        Args:
            sample_ids: of those that findings name.
            rows: `sample_id`, `token_offset` and `length` of all samples.
        """
        wanted = pa.array(sorted(set(sample_ids)), pa.string())
        some = rows.filter(pc.is_in(rows["sample_id"], wanted))
        columns = (some[name].to_pylist() for name in ("sample_id", "token_offset", "length"))
        self.places = {str(name): [at, at + size] for name, at, size in zip(*columns, strict=True)}


def overview_of(manifest: Manifest, shards: int, rows: pa.Table) -> Overview:
    """The overview of a set, findings aside.

    Args:
        manifest: of the set.
        shards: committed ones.
        rows: `INDEX_SCHEMA` rows that no tombstone hides.
    """
    lengths = rows["length"].to_numpy()
    offsets = rows["token_offset"].to_numpy()
    edges = _edges(int(lengths.max())) if len(lengths) else np.empty(0, np.int64)
    counts = np.histogram(lengths, edges)[0] if len(lengths) else np.empty(0, np.int64)
    return Overview(
        target=manifest.target.name,
        layers=list(manifest.layers),
        final_layer=manifest.final_layer,
        dtype=manifest.storage.dtype.value,
        codec=manifest.storage.codec.value,
        shards=shards,
        shard_tokens=manifest.storage.shard_tokens,
        end=int((offsets + lengths).max()) if len(lengths) else 0,
        length_edges=edges.tolist(),
        length_counts=counts.tolist(),
    )


def _edges(longest: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Whole numbers from 0 on, evenly spaced, the last past the longest length."""
    step = max(1, -(-(longest + 1) // _BINS))
    return np.arange(0, longest + step + 1, step, dtype=np.int64)
