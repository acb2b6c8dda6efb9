"""Which samples of a data set a loader takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import InputError

Where = Callable[[pa.Table], npt.NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Samples that fulfil all of it.

    Attributes:
        split: they are of this split.
        min_length: they have so many tokens, or more.
        where: index table to a boolean per row, true for samples to keep.
    """

    split: str | None = None
    min_length: int | None = None
    where: Where | None = None

    def rows(self, dataset: Dataset) -> npt.NDArray[np.int64]:
        """Rows of the index, ascending; may be none.

        Raises:
            InputError: `where` gives something else than a value a row.
        """
        index = dataset.index
        keep = np.ones(index.num_rows, dtype=bool)
        if self.split is not None:
            of_split = pc.is_in(index["split"], pa.array([self.split], pa.string()))
            keep &= of_split.to_numpy(zero_copy_only=False).astype(bool)
        if self.min_length is not None:
            keep &= index["length"].to_numpy() >= self.min_length
        if self.where is not None:
            wanted = np.asarray(self.where(index))
            if wanted.shape != keep.shape:
                raise InputError(
                    f"where= gave shape {wanted.shape} for {index.num_rows} rows; expected a "
                    "boolean for each row of the index."
                )
            keep &= wanted.astype(bool)
        return np.flatnonzero(keep)

    def rows_or_refuse(self, dataset: Dataset) -> npt.NDArray[np.int64]:
        """As `rows`, but never none.

        Raises:
            InputError: nothing is selected; says what there is.
        """
        rows = self.rows(dataset)
        if not len(rows):
            splits = sorted(
                value or "(no split)" for value in dataset.index["split"].unique().to_pylist()
            )
            raise InputError(
                f"no sample of {dataset.url} is selected (split={self.split!r}, "
                f"min_length={self.min_length}); it has {len(dataset)} samples, of "
                f"{', '.join(splits) or 'no split'}. Leave split out, or write samples with one."
            )
        return rows
