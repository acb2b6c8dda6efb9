"""Facts about a data set and its samples, as `info`, `stats` and `show` print them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.axis import EXPECTED_RATIO
from eagle3data.schema.sample import as_float32
from eagle3data.storage import layout


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Committed shards, their objects and the bytes of those."""

    shards: int
    objects: int
    bytes: int


def overview(dataset: Dataset, stored: Stored | None = None) -> dict[str, Any]:
    """What `eagle3data info --json` prints.

    Args:
        dataset: opened.
        stored: what is known of its objects already; by default every index part is read for it.
    """
    manifest, index = dataset.manifest, dataset.index
    stored = stored_objects(dataset) if stored is None else stored
    sizes = manifest.size_arithmetic(index["length"].to_numpy().tolist())
    return {
        "url": dataset.url,
        "version": manifest.version,
        **manifest.model_dump(mode="json", include={"target", "tokenizer", "capture", "storage"}),
        "samples": len(dataset),
        "hidden": dataset.hidden,
        "tokens": dataset.tokens,
        "loss_tokens": int(np.sum(index["n_loss_tokens"].to_numpy())),
        "shards": {"planned": planned_shards(dataset), "committed": stored.shards},
        "objects": stored.objects,
        "bytes": stored.bytes,
        "arithmetic": {
            "tokens": sizes.tokens,
            "layers": sizes.layers,
            "hidden_size": sizes.hidden_size,
            "item_bytes": sizes.item_bytes,
            "state_bytes": sizes.state_bytes,
            "expected_bytes": {codec: sizes.stored_bytes(codec) for codec in EXPECTED_RATIO},
        },
        "generation": dataset.generation,
        "warnings": manifest.warnings,
    }


def stored_objects(dataset: Dataset) -> Stored:
    """How much is committed, as the index parts list it.

    Raises:
        CorruptionError: a part that can't be read.
    """
    committed = layout.committed_shards(dataset.root)
    with ThreadPoolExecutor(dataset.root.threads) as pool:
        listed = list(pool.map(partial(shard_objects, dataset), committed))
    return Stored(
        shards=len(committed),
        objects=sum(map(len, listed)),
        bytes=sum(int(entry["bytes"]) for entries in listed for entry in entries),
    )


def planned_shards(dataset: Dataset) -> int:
    """Shards that the plan names."""
    shards = layout.read_plan(dataset.root)["shard"].to_numpy()
    return int(shards.max()) + 1 if len(shards) else 0


def shard_objects(dataset: Dataset, shard: int) -> list[dict[str, Any]]:
    """Objects of a committed shard as its index part lists them: `path`, `bytes`, `crc32c`."""
    facts = layout.read_facts(dataset.root, layout.index_part(shard))
    return list(facts.get("objects", []))


def statistics(dataset: Dataset) -> dict[str, Any]:
    """What `eagle3data stats --json` prints: lengths, mask share, magnitudes a layer."""
    index = dataset.index
    lengths: npt.NDArray[Any] = index["length"].to_numpy()
    kept: npt.NDArray[Any] = index["n_loss_tokens"].to_numpy()
    layers = dataset.manifest.layers
    per_layer = {
        name: np.asarray(index[name].to_pylist(), dtype=float).reshape(-1, len(layers))
        for name in ("absmax", "rms", "min_row_rms", "n_zero_rows", "n_nan", "n_inf")
    }
    splits = [value or "no split" for value in index["split"].to_pylist()]
    return {
        "samples": len(dataset),
        "hidden": dataset.hidden,
        "splits": {name: splits.count(name) for name in sorted(set(splits))},
        "length": quantiles(lengths),
        "loss_share": quantiles(kept / np.maximum(lengths, 1)),
        "with_witness": len(dataset) - index["witness_token"].null_count,
        "layers": [
            {
                "layer": layer,
                "rms": quantiles(per_layer["rms"][:, slot]),
                "absmax": _largest(per_layer["absmax"][:, slot]),
                "min_row_rms": _smallest(per_layer["min_row_rms"][:, slot]),
                **{
                    name: int(per_layer[name][:, slot].sum())
                    for name in ("n_zero_rows", "n_nan", "n_inf")
                },
            }
            for slot, layer in enumerate(layers)
        ],
    }


def describe_sample(dataset: Dataset, position: int) -> dict[str, Any]:
    """What `eagle3data show --json` prints; reads and checks the sample's bytes."""
    found = dataset.read(position)
    facts = indexed_sample(dataset, position)
    layers = []
    for layer, states in found.hidden_states.items():
        norms = row_norms(states)
        layers.append(
            {
                "layer": layer,
                "min": float(norms.min()),
                "median": float(np.median(norms)),
                "max": float(norms.max()),
                "object": layout.shard_object(layout.states_array(layer), facts["shard"]),
            }
        )
    return {
        **facts,
        "layers": layers,
        "input_ids": found.input_ids.tolist(),
        "loss_mask": found.loss_mask.tolist(),
    }


def indexed_sample(dataset: Dataset, position: int) -> dict[str, Any]:
    """What the index says of a sample, its tokens aside; reads nothing else."""
    offset, length = int(dataset.index["token_offset"][position].as_py()), dataset.length(position)
    axis = dataset.manifest.storage.axis
    chunks = axis.chunks_of(offset, length)
    row = {
        name: dataset.index[name][position].as_py()
        for name in ("source", "split", "source_extra", "witness_token", "witness_logprob")
    }
    return {
        "sample_id": dataset.sample_id(position),
        "position": position,
        "source": row["source"],
        "split": row["split"],
        "source_extra": dict(row["source_extra"] or {}),
        "length": length,
        "token_offset": offset,
        "shard": axis.shard_of(offset),
        "chunks": [chunks.start, chunks.stop - 1],
        "witness_token": row["witness_token"],
        "witness_logprob": row["witness_logprob"],
    }


def row_norms(states: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """`[T]` Euclidean norms of `[T, H]` stored states."""
    return np.asarray(np.linalg.norm(as_float32(states), axis=1), np.float32)


def quantiles(values: npt.NDArray[Any]) -> dict[str, float]:
    """`min`, `p10`, `median`, `p90`, `max` and `mean`; all zero where there are no values."""
    if not len(values):
        values = np.zeros(1)
    points = np.quantile(values, [0, 0.1, 0.5, 0.9, 1])
    names = ("min", "p10", "median", "p90", "max")
    return {
        **{name: float(value) for name, value in zip(names, points, strict=True)},
        "mean": float(np.mean(values)),
    }


def _largest(values: npt.NDArray[Any]) -> float:
    return float(values.max()) if len(values) else 0.0


def _smallest(values: npt.NDArray[Any]) -> float:
    return float(values.min()) if len(values) else 0.0
