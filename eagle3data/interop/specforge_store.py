"""SpecForge 0.2 trains from a data set's URL: a feature store of its interface, and its refs.

Their command line makes its own store for offline files; their Python interface takes one:
`FeatureDataLoader(store, refs=...)`, and `launch.build_disagg_offline_runtime(feature_store=...,
refs=...)`, which trains. What they get is what `export-dataset --format specforge` writes.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from specforge.runtime.contracts import FeatureHandle, SampleRef
from specforge.runtime.data_plane.feature_store import FeatureStore

from eagle3data.interop.write_specforge import Norm, features_of, needed_norm
from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import InputError, MismatchError

_SCHEME = "eagle3data://"
_FEATURES = ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")


class DataSetStore(FeatureStore):  # type: ignore[misc]
    """Samples of one data set, read and checked when they are asked for; any thread may ask."""

    def __init__(self, dataset: Dataset, final_norm: Norm | None = None) -> None:
        """Look whether they can train on the set.

        Args:
            dataset: to read.
            final_norm: the target's, for a set that keeps its final layer before it.

        Raises:
            InputError: no final layer, or no norm where one is needed.
        """
        self._dataset = dataset
        self._norm = needed_norm(dataset.manifest, final_norm)
        self._leases = itertools.count()

    def refs(
        self, run_id: str, *, split: str | None = "train", ttt_length: int = 7, max_len: int = 2048
    ) -> list[SampleRef]:
        """References to a split's samples, in the set's order; nothing is read for them.

        Args:
            run_id: of their run.
            split: None for every sample.
            ttt_length: their setting, which travels with each.
            max_len: likewise; their transform cuts samples there.

        Raises:
            InputError: no sample of that split.
        """
        dataset = self._dataset
        splits = dataset.index["split"].to_pylist()
        positions = [row for row, own in enumerate(splits) if split is None or own == split]
        if not positions:
            raise InputError(
                f"{dataset.url} has no sample of the split {split!r}; it has {set(splits)}."
            )
        metadata = {
            "format": "offline_eagle3",
            "target_repr": "hidden_state",
            "ttt_length": ttt_length,
            "max_len": max_len,
        }
        return [
            SampleRef(
                sample_id=dataset.sample_id(position),
                run_id=run_id,
                source_task_id=None,
                feature_store_uri=f"{_SCHEME}{dataset.generation}/{position}",
                feature_keys={name: name for name in _FEATURES},
                feature_specs={},
                strategy="eagle3",
                target_model_version=dataset.manifest.target.name,
                num_tokens=dataset.length(position),
                metadata=dict(metadata),
            )
            for position in positions
        ]

    def get(
        self,
        sample_ref: SampleRef,
        *,
        device: torch.device | str = "cpu",
        names: list[str] | None = None,
    ) -> tuple[dict[str, torch.Tensor], FeatureHandle]:
        """A sample's features, as `write_specforge.features_of` says.

        Raises:
            MismatchError: a reference to other rows than the set's.
            CorruptionError: damage.
        """
        generation, _, position = sample_ref.feature_store_uri.removeprefix(_SCHEME).rpartition("/")
        if generation != self._dataset.generation:
            raise MismatchError(
                f"{sample_ref.sample_id} refers to rows {generation}; {self._dataset.url} has "
                f"{self._dataset.generation}: it grew or was repaired. Make the refs anew."
            )
        found = features_of(self._dataset.read(int(position)), self._norm)
        wanted = names or list(sample_ref.feature_keys)
        lease = f"{sample_ref.sample_id}:{next(self._leases)}"
        handle = FeatureHandle(sample_id=sample_ref.sample_id, generation=0, lease_token=lease)
        return {name: found[name].to(device) for name in wanted}, handle

    def put(
        self, tensors: dict[str, torch.Tensor], *, sample_id: str, metadata: dict[str, Any]
    ) -> SampleRef:
        """Refused: a data set is written by `extract`.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{sample_id} ({len(tensors)} tensors, {len(metadata)} facts) was to be stored in "
            f"{self._dataset.url}, which is read only here. Extract with `eagle3data extract`."
        )

    def release(self, handle: FeatureHandle, *, reason: str = "consumed") -> None:
        """Nothing is held."""

    def abort(self, sample_id: str, *, reason: str) -> None:
        """Nothing is held."""

    def health(self) -> dict[str, Any]:
        """What they log of a store."""
        return {"samples": len(self._dataset), "tokens": self._dataset.tokens}
