"""The global list of packs, epoch by epoch: what every rank knows by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eagle3data.readers.documents import Documents
from eagle3data.readers.mixing import dealt, draws
from eagle3data.readers.order import Shuffle, epoch_order, shard_order
from eagle3data.readers.packing import PackPlan
from eagle3data.readers.plan_cache import PlanCache


class Epochs:
    """Plans of the epochs of some documents: pure functions of them, the seed and the epoch."""

    def __init__(
        self,
        documents: Documents,
        numbers: Sequence[range],
        *,
        token_budget: int,
        seed: int,
        shuffle: Shuffle,
        weights: Sequence[float] | None,
        stream: str,
    ) -> None:
        """Nothing is planned yet.

        Args:
            documents: what is packed.
            numbers: of each set's documents.
            token_budget: tokens of a pack.
            seed: of the order.
            shuffle: how the order is made.
            weights: of the sets; without them each document comes once an epoch.
            stream: digest of all that plans depend on but the epoch.
        """
        self._documents, self._numbers = documents, numbers
        self._budget, self._seed, self._shuffle = token_budget, seed, shuffle
        self._stream = stream
        self._draws = None
        if weights is not None:
            tokens = [int(self._lengths(each).sum()) for each in numbers]
            self._draws = draws(weights, [len(each) for each in numbers], tokens)

    def plan(self, epoch: int) -> PackPlan:
        """The packs of an epoch."""
        cache = PlanCache(self._stream + self.parts_digest, len(self._documents))
        known = cache.load(epoch)
        if known is not None:
            return PackPlan.made(known)
        documents, rounds = self._coming(epoch)
        return PackPlan.whole(
            *self._in_order(documents, rounds, self._seed, epoch),
            self._budget,
            keep=lambda packs: cache.store(epoch, packs),
        )

    def grow(self, plan: PackPlan) -> bool:
        """Wait for what comes after all that is known; false if nothing does."""
        return not plan.is_closed

    @property
    def parts(self) -> str:
        """What was seen of a growing set; nothing otherwise."""
        return ""

    @property
    def parts_digest(self) -> str:
        """Digest of the rows that `parts` stands for."""
        return ""

    def restore(self, parts: str, digest: str) -> None:
        """Take what was seen of a growing set from a state.

        Raises:
            MismatchError: it is not what is there.
        """

    def _coming(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """What comes in an epoch, set by set, and how often its set has been dealt before."""
        if self._draws is None:
            documents = np.arange(len(self._documents))
            return documents, np.zeros_like(documents)
        taken = [
            dealt(len(numbers), drawn, number=number, seed=self._seed, epoch=epoch)
            for number, (numbers, drawn) in enumerate(zip(self._numbers, self._draws, strict=True))
        ]
        return (
            np.concatenate(
                [
                    numbers.start + cards
                    for numbers, (cards, _) in zip(self._numbers, taken, strict=True)
                ]
            ),
            np.concatenate([rounds for _, rounds in taken]),
        )

    def _in_order(
        self,
        documents: npt.NDArray[np.int64],
        rounds: npt.NDArray[np.int64],
        seed: int,
        epoch: int,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The documents as they are packed, and the tokens of each."""
        if self._shuffle == "global":
            documents = documents[epoch_order(len(documents), seed, epoch)]
        elif self._shuffle == "shard":
            places = self._documents.places(documents)
            places = np.column_stack([places[:, 0], rounds, places[:, 1]])
            documents = documents[shard_order(places, seed, epoch)]
        return documents, self._documents.lengths[documents]

    def _lengths(self, numbers: range) -> npt.NDArray[np.int32]:
        return self._documents.lengths[numbers.start : numbers.stop]
