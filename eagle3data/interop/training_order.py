"""The order in which a set's samples stand as another trainer's rows: those it trains on first.

speculators holds out the last rows of its data set and knows no splits; with the samples of
`train` first, one share of the rows makes its held-out rows ours.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.interop.exporting import ExportedSet
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample

TRAIN = "train"


class TrainingOrder:
    """A data set by its rows: samples of `train`, then the others, each in token order.

    Attributes:
        positions: `[rows]` int64, each row's position in the set.
        trained: rows that are trained on; they come first.
    """

    def __init__(self, dataset: ExportedSet) -> None:
        """Order a set's samples; nothing but its index is read."""
        self._dataset = dataset
        others = np.array([split != TRAIN for split in dataset.index["split"].to_pylist()], bool)
        self.positions: npt.NDArray[np.int64] = np.argsort(others, kind="stable")
        self.trained = int((~others).sum())

    @property
    def manifest(self) -> Manifest:
        """What the set is."""
        return self._dataset.manifest

    @property
    def generation(self) -> str:
        """Digest of its rows."""
        return self._dataset.generation

    @property
    def index(self) -> pa.Table:
        """The set's index, in this order."""
        return self._dataset.index.take(self.positions)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> Sample:
        return self._dataset[int(self.positions[row])]

    def read_tokens(self, row: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Token ids and loss mask of a row, `[T]` each."""
        return self._dataset.read_tokens(int(self.positions[row]))

    @property
    def train_ratio(self) -> float | None:
        """The share of the rows that is trained on; None where nothing, or all, is.

        The half row keeps `int(rows * ratio)` from falling one short.
        """
        if not 0 < self.trained < len(self):
            return None
        return round((self.trained + 0.5) / len(self), 9)
