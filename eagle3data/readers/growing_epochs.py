"""The global list of packs over a data set that grows: what came later comes later."""

from __future__ import annotations

from typing import Any

import numpy as np

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.documents import Documents
from eagle3data.readers.epochs import Epochs
from eagle3data.readers.growing import GrowingSet
from eagle3data.readers.order import ROUND_SEEDS, derived_seed
from eagle3data.readers.packing import WINDOW_PACKS, PackPlan
from eagle3data.readers.selection import Selection
from eagle3data.readers.stream_state import rows_digest
from eagle3data.schema.digest import json_digest
from eagle3data.schema.errors import InputError, MismatchError


class GrowingEpochs(Epochs):
    """Plans over the rounds of a growing set.

    Epoch 0 takes the rounds one after the other, each in an order of its own, through one packing;
    later epochs have all of it.
    """

    def __init__(
        self, growing: GrowingSet, selection: Selection, documents: Documents, **settings: Any
    ) -> None:
        """No round is taken yet; `settings` as of `Epochs`."""
        super().__init__(documents, [], weights=None, **settings)
        self._growing, self._selection = growing, selection
        self._rounds: list[range] = []
        self._seen: list[list[str]] = []

    def plan(self, epoch: int) -> PackPlan:
        """The packs of an epoch; of epoch 0, those of the rounds so far.

        Raises:
            InputError: a later epoch of a set that is not finished.
        """
        if epoch and not self._growing.is_closed:
            raise InputError(
                f"epoch {epoch} of a set that is followed can't begin: epoch 0 ends when the set "
                "is finished. Iterate it to its end first."
            )
        if epoch:
            return super().plan(epoch)
        plan = PackPlan(self._budget)
        for round_, numbers in enumerate(self._rounds):
            self._extend(plan, round_, numbers)
        if self._growing.is_closed:
            plan.close()
        return plan

    def grow(self, plan: PackPlan) -> bool:
        """Wait for the next round; false if the plan is of a finished set, to its end.

        Raises:
            StalledError, CorruptionError: as of `GrowingSet.next`.
            InputError: a sample over the budget, or nothing selected of the whole set.
        """
        if plan.is_closed:
            return False
        part = self._growing.next(self._tokens, WINDOW_PACKS * self._budget)
        if part is None and not len(self._documents):
            raise InputError("the set is finished, and no sample of it is selected.")
        if part is None:
            plan.close()
        else:
            self._extend(plan, len(self._rounds), self._add(part))
        return True

    @property
    def parts(self) -> str:
        """The rounds' shards."""
        return self._growing.written()

    @property
    def parts_digest(self) -> str:
        """Digest of the rounds' rows."""
        return json_digest(self._seen)

    def restore(self, parts: str, digest: str) -> None:
        """Take the rounds of a state.

        Raises:
            MismatchError: their samples are not those that were there.
            CorruptionError: a part that is gone or can't be read.
        """
        self._documents.clear()
        self._rounds, self._seen = [], []
        for part in self._growing.restore(parts):
            self._add(part)
        if self.parts_digest != digest:
            raise MismatchError(
                f"the samples of the parts {parts!r} are not those that the loader's state was "
                "made with: some were hidden, done again or selected otherwise since. Start "
                "without the state."
            )

    def _add(self, part: Dataset) -> range:
        rows = self._selection.rows(part)
        numbers = self._documents.add(part, rows)
        self._rounds.append(numbers)
        self._seen.append([part.generation, rows_digest([rows])])
        return numbers

    def _tokens(self, part: Dataset) -> int:
        return int(part.index["length"].to_numpy()[self._selection.rows(part)].sum())

    def _extend(self, plan: PackPlan, round_: int, numbers: range) -> None:
        documents = np.arange(numbers.start, numbers.stop)
        seed = derived_seed(self._seed, ROUND_SEEDS + round_)
        plan.add(*self._in_order(documents, np.zeros_like(documents), seed, 0))
