"""speculators 0.9 trains straight from a data set's URL: a hidden-states backend of theirs.

Importing this module, before anything of `speculators.train`, registers the backend `eagle3data`
(they look for no entry points; their command line is built as it is imported). Rows, masks and
lengths come from the folder that `export-dataset --no-states` wrote; a row's states are read from
the set, checked, in the process that asks for them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer

from eagle3data.interop.exporting import MARKER
from eagle3data.interop.training_order import TrainingOrder
from eagle3data.interop.write_speculators import LAYOUT, ORDER, check_final_layer
from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.schema.errors import InputError, MismatchError
from eagle3data.schema.manifest import Manifest, StorageDtype
from eagle3data.storage.arrays import states_dtype

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

NAME = "eagle3data"


class DataSetTransfer(HiddenStatesTransfer):  # type: ignore[misc]
    """States by row, of a data set whose rows were exported in `TrainingOrder`.

    It is sent to loader processes; each opens the set when it reads its first row.
    """

    def __init__(self, url: str, generation: str, **opening: Any) -> None:
        """Remember what to open.

        Args:
            url: of the set.
            generation: of the rows that are trained on.
            opening: more for `open_dataset`.
        """
        self.url, self.generation, self.opening = url, generation, opening
        self._opened: tuple[Dataset, TrainingOrder] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def setup(self) -> None:
        """Open the set.

        Raises:
            MismatchError: it has other rows than those that are trained on.
        """
        if self._opened is None:
            dataset = open_dataset(self.url, **self.opening)
            require_same_rows(dataset, self.generation, "this training")
            self._opened = dataset, TrainingOrder(dataset)

    def get_cached(self, file_idx: int) -> dict[str, torch.Tensor]:
        """A row as `FileTransfer` gives it.

        Args:
            file_idx: the row.

        Returns:
            `hidden_states` `[T, slots, H]` in the stored dtype, the final layer last, before its
            norm; `token_ids` `[T]` int64.

        Raises:
            InputError: no such row.
            CorruptionError: damage; nothing is left out in silence.
        """
        self.setup()
        if self._opened is None:
            raise TypeError("the set was opened and is gone")
        dataset, order = self._opened
        if not 0 <= file_idx < len(order):
            raise InputError(f"row {file_idx} was asked for; {self.url} has {len(order)} rows.")
        position = int(order.positions[file_idx])
        manifest = dataset.manifest
        ids, _ = dataset.read_tokens(position)
        shape = (len(manifest.layers), len(ids), manifest.hidden_size)
        stored = np.empty(shape, states_dtype(manifest))
        dataset.read_into(position, stored, sorted(manifest.layers))
        states = torch.from_numpy(stored)
        if manifest.storage.dtype is StorageDtype.BFLOAT16:
            states = states.view(torch.bfloat16)
        return {
            "hidden_states": states.transpose(0, 1),  # a view: nothing is copied
            "token_ids": torch.from_numpy(ids.astype(np.int64)),
        }

    def get_generated(self, hs_transfer_params: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Refused: a set holds every row that it has.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"states were to be generated ({sorted(hs_transfer_params)}); the backend {NAME} reads "
            "those that `eagle3data extract` wrote. Train with --on-missing raise."
        )


@HiddenStatesBackend.register(NAME)
class DataSetBackend(HiddenStatesBackend):  # type: ignore[misc]
    """`--hidden-states-backend eagle3data --eagle3data-url URL`."""

    @staticmethod
    def add_train_args(parser: ArgumentParser) -> None:
        """Their hook for flags of `speculators train`."""
        parser.add_argument(
            "--eagle3data-url", type=str, help="Data set that the rows were exported from."
        )
        parser.add_argument(
            "--eagle3data-cache", type=str, help="Folder on a local disk that keeps what was read."
        )
        parser.add_argument(
            "--eagle3data-cache-bytes", type=int, help="The most that the folder may hold."
        )

    @staticmethod
    def add_launch_args(parser: ArgumentParser) -> None:
        """Their hook for flags of `launch_vllm.py`; there are none."""

    @staticmethod
    def from_train_args(args: Namespace, data_path: str) -> DataSetTransfer:
        """The transfer of a run, once set, rows and layers were seen to belong together.

        Args:
            args: their settings, flat.
            data_path: folder of the rows.

        Raises:
            InputError: no URL, no exported rows there, or a set that they can't train on.
            MismatchError: rows of another set, or other layers.
        """
        url = getattr(args, "eagle3data_url", None)
        if not url:
            raise InputError(
                f"--hidden-states-backend {NAME} needs --eagle3data-url URL. If that flag is "
                f"unknown, {__name__} was imported too late: import it before speculators.train, "
                "or start with `python -m eagle3data.interop.speculators_train`."
            )
        opening = {"cache": args.eagle3data_cache, "cache_bytes": args.eagle3data_cache_bytes}
        dataset = open_dataset(url, **opening)
        check_final_layer(dataset.manifest)
        _check_rows(dataset, Path(data_path))
        _check_layers(dataset.manifest, args)
        return DataSetTransfer(url, dataset.generation, **opening)

    @staticmethod
    def build_kv_transfer_config(args: Namespace) -> dict[str, Any]:  # noqa: ARG004
        """Refused: vLLM's states come in by `eagle3data extract`.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"the backend {NAME} starts no vLLM. Extract with `eagle3data extract` (--endpoint for "
            "a vLLM that runs), then train from the set."
        )


def require_same_rows(dataset: Dataset, generation: str, whose: str) -> None:
    """Whether a set still has the rows that it had.

    Raises:
        MismatchError: it has others.
    """
    if dataset.generation != generation:
        raise MismatchError(
            f"{dataset.url} has other rows ({dataset.generation}) than those of {whose} "
            f"({generation}): it grew or was repaired. {_EXPORT.format(url=dataset.url)}"
        )


_EXPORT = (
    "Export the rows anew: `eagle3data export-dataset {url} --format speculators --no-states --out "
    "DIR` into an empty folder, and give it as --data-path."
)


def _check_rows(dataset: Dataset, folder: Path) -> None:
    marker = folder / MARKER
    if not marker.exists():
        raise InputError(
            f"{folder} holds no rows of a data set ({MARKER} is not there). "
            f"{_EXPORT.format(url=dataset.url)}"
        )
    told = json.loads(marker.read_bytes())
    if (told["layout"], told.get("order")) != (LAYOUT, ORDER):
        raise MismatchError(
            f"{folder} was exported as {told['layout']}, its rows in the order "
            f"{told.get('order')!r}; expected {LAYOUT} and {ORDER!r}. "
            f"{_EXPORT.format(url=dataset.url)}"
        )
    require_same_rows(dataset, told["generation"], str(folder))


def _check_layers(manifest: Manifest, args: Namespace) -> None:
    """Their ids count as ours do; what `fc` reads must be what the set holds, in its order."""
    held = sorted(manifest.layers)[:-1]
    asked = args.target_layer_ids
    if asked is None and args.speculator_type in {"eagle3", "peagle"}:
        count = manifest.target.num_hidden_layers
        asked = [2, count // 2, count - 3]  # their default
    if asked is not None and list(asked) != held:
        raise MismatchError(
            f"the draft is to read layers {list(asked)}, and the set holds {held}: set "
            f"--target-layer-ids {' '.join(map(str, held))}, or extract with --layers."
        )
