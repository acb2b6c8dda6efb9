"""A Hugging Face data set saved to disk, read with pyarrow alone: ids, masks, lengths.

As `datasets` 5.2 writes it (`save_to_disk`): `state.json` names the Arrow stream files in the order
of the rows, and rows that were shuffled or selected were put in order before they were saved.
Older versions could leave the order in files of indices; such a set is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.schema.errors import InputError

COLUMNS = ("input_ids", "loss_mask")


def is_arrow_dataset(folder: Path) -> bool:
    """Whether `folder` looks like a data set saved to disk."""
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


class ArrowDataset:
    """Rows of token ids and loss masks, mapped from the disk."""

    def __init__(self, folder: Path) -> None:
        """Open all files of the set.

        Raises:
            InputError: a file is missing or damaged, or the columns are not there.
        """
        self._folder = folder
        tables = [self._table(folder / name) for name in self._names()]
        try:
            self._table_of_all = pa.concat_tables(tables)
        except pa.ArrowException as error:
            raise InputError(
                f"The Arrow files in {folder} differ in their columns: {error}"
            ) from None

    def __len__(self) -> int:
        return int(self._table_of_all.num_rows)

    def input_ids(self, row: int) -> npt.NDArray[Any]:
        """Token ids of a row, `[T]`, in the dtype of the file."""
        return self._values("input_ids", row)

    def loss_mask(self, row: int) -> npt.NDArray[Any]:
        """Loss mask of a row, `[T]`, in the dtype of the file."""
        return self._values("loss_mask", row)

    def _values(self, column: str, row: int) -> npt.NDArray[Any]:
        scalar = self._table_of_all.column(column)[row]
        if not scalar.is_valid:
            return np.empty(0, np.int64)
        values: npt.NDArray[Any] = scalar.values.to_numpy(zero_copy_only=False)
        return values

    def _names(self) -> list[str]:
        path = self._folder / "state.json"
        try:
            state = json.loads(path.read_bytes())
            names = [str(Path(file["filename"]).name) for file in state["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} does not list the Arrow files of a data set saved to disk "
                f"({type(error).__name__}). Save the set again with save_to_disk."
            ) from None
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise InputError(
                f"{self._folder} keeps the order of its rows in files of indices, which older "
                "versions of datasets wrote. Load it and save it again with a current one."
            )
        return names

    def _table(self, path: Path) -> pa.Table:
        try:
            with pa.memory_map(str(path)) as mapped:
                table = pa.ipc.open_stream(mapped).read_all()
                # A damaged offset would else be followed out of the file when a row is read.
                table.validate(full=True)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InputError(
                f"{path} is not a whole Arrow file ({error}). Copy it again from where it was made."
            ) from None
        absent = [name for name in COLUMNS if not _is_list(table, name)]
        if absent:
            raise InputError(
                f"{path} has no column of lists {' or '.join(absent)}, only "
                f"{', '.join(table.column_names)}. "
                "Name the folder with --dataset that `prepare-data` wrote."
            )
        return table.select(COLUMNS)


def _is_list(table: pa.Table, name: str) -> bool:
    if name not in table.column_names:
        return False
    kind = table.schema.field(name).type
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
