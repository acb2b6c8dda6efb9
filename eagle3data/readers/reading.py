"""How the samples of every batch are read and checked: one by one, or many small ones at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from eagle3data.readers.documents import Documents
from eagle3data.readers.gathering import GatheredStates, gather_tokens
from eagle3data.readers.sample_cache import CacheCounts
from eagle3data.readers.together import Together
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.statistics import layer_statistics, stored_faults
from eagle3data.storage import layout
from eagle3data.storage.arrays import fill_row

Verify = Literal["states", "bytes", "none"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What every batch of a loader is read by.

    Attributes:
        documents: what batches are made of.
        layers: canonical ids, in the order of a batch's first dimension.
        token_budget: T, rows of a batch.
        verify: how closely every sample is checked.
    """

    documents: Documents
    layers: Sequence[int]
    token_budget: int
    verify: Verify

    def cache_counts(self) -> CacheCounts | None:
        """What the data sets' caches have done so far; None without one."""
        caches = [one.cache for one in self.documents.sets if one.cache is not None]
        return sum((one.counts for one in caches), CacheCounts()) if caches else None

    def states(self, layer: int, document: int, out: npt.NDArray[Any]) -> None:
        """Read one layer of a document into `[T, H]`, in the calling thread.

        Raises:
            CorruptionError: damaged bytes, or states that are not those of the index.
        """
        documents = self.documents
        documents.read_states(layer, document, out, verify=self.verify != "none")
        if self.verify != "states":
            return
        stated = documents.stated_statistics(document, layer)
        for kind, detail in stored_faults(layer_statistics(out), stated, len(out)):
            raise CorruptionError(
                kind,
                detail,
                url=documents.dataset(document).url,
                array=layout.states_array(layer),
                shard=documents.shard(document),
                sample_id=documents.sample_id(document),
            )

    @property
    def can_gather(self) -> bool:
        """Whether documents can be read together, and nothing is asked of each alone."""
        return self.verify != "states" and all(one.can_gather for one in self.documents.sets)

    def gathered_states(
        self, members: Sequence[int], states: npt.NDArray[Any], first: int
    ) -> list[bool]:
        """Read all layers of some documents, one after the other, by few calls.

        Args:
            members: the documents.
            states: `[L, T, H]`.
            first: the row of `T` that their first goes to.

        Returns:
            Of each layer whether that could be done, and all of them are whole; else its rows mean
            nothing.
        """
        arrays = [layout.states_array(layer) for layer in self.layers]
        fill = fill_row(self.documents.manifest, arrays[0])
        gathered = GatheredStates(Together(self.documents, members), fill)
        return gathered.read(arrays, states, first, verify=self.verify != "none")

    def gathered_tokens(
        self, members: Sequence[int], ids: npt.NDArray[np.int32], mask: npt.NDArray[np.uint8]
    ) -> bool:
        """Read ids and masks of some documents into `[T]` each, one after the other, by few calls.

        Returns:
            Whether that could be done, and they are whole and the index's; else they mean nothing.
        """
        which = np.asarray(members)
        numbers, rows = self.documents.places_in_index(which)
        lengths = self.documents.lengths[which]
        for number in set(numbers.tolist()):
            own = numbers == number
            tokens = slice(None) if own.all() else np.repeat(own, lengths)
            stated = self.documents.sets[number].stated.tokens(
                rows[own].tolist(), lengths[own].tolist()
            )
            if stated is None:
                return False
            together = Together(self.documents, which[own])
            for array, out, expected in (
                (layout.INPUT_IDS, ids, stated[0]),
                (layout.LOSS_MASK, mask, stated[1]),
            ):
                found = np.empty(len(expected), out.dtype)
                fill = fill_row(self.documents.manifest, array)
                verify = self.verify != "none"
                if not gather_tokens(together, array, fill, found, verify=verify):
                    return False
                if not np.array_equal(found, expected):
                    return False
                out[tokens] = found
        return True

    def tokens(
        self, document: int, ids: npt.NDArray[np.int32], mask: npt.NDArray[np.uint8]
    ) -> None:
        """Read ids and mask of a document into `[T]` each.

        Raises:
            CorruptionError: damage, or not those of the index.
        """
        ids[:], mask[:] = self.documents.read_tokens(document, verify=self.verify != "none")
