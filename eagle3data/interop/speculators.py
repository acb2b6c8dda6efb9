"""speculators' offline data: `hs_{row}.safetensors` beside a Hugging Face data set.

Checked against the writers of vLLM 0.32 (ExampleHiddenStatesConnector), speculators and
hs_connectors 0.9.0: a file holds `hidden_states` `[T, slots, H]` in the engine's dtype and
`token_ids` int64 `[T]`; with the FP8 connector the states are float8_e4m3fn beside
`hidden_states_scales`, float32 `[T, 1, 1]`, a scale a token over all slots. The data set
(`input_ids`, `loss_mask`, `seq_len`) lies in the same folder, in the folder above (their default:
`hidden_states/` inside the data set), or where `--dataset` says. Layer ids are nowhere; vLLM's ids
are canonical, and its id N is before the final norm.

A float8 state times its scale is rounded once, to bfloat16. Their own reader rounds the scale to
bfloat16 first, so its values are off these by up to 1/128.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.interop.arrow_dataset import ArrowDataset, is_arrow_dataset
from eagle3data.interop.columns import loss_mask, token_ids
from eagle3data.interop.floats import FLOAT8, bfloat16_bits
from eagle3data.interop.opened import SourceOfSamples, Stored
from eagle3data.interop.safetensors_file import SafetensorsFile
from eagle3data.interop.source import Entry, SourceFacts, SourceOptions, Tokens
from eagle3data.schema.errors import InputError, SampleError
from eagle3data.schema.layers import NormState

NAME = re.compile(r"hs_(\d+)\.safetensors")
FP8 = "float8_e4m3fn"
SCALES = ("hidden_states_scales", "hidden_states_scale")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": FP8}


def states_folder(path: Path) -> Path:
    """Where the `hs_*` files of a source lie: in `path`, or in its `hidden_states`."""
    below = path / "hidden_states"
    if path.is_dir() and below.is_dir() and not any(map(NAME.fullmatch, _names(path))):
        return below
    return path


class SpeculatorsSource(SourceOfSamples):
    """A `StateSource` of speculators' files; row by row of the data set."""

    format = "speculators"

    def __init__(self, options: SourceOptions, hidden_size: int) -> None:
        """List the files and open the data set.

        Raises:
            InputError: no folder, no file of the layout, or no data set.
        """
        self._folder = states_folder(options.path)
        self._hidden_size = hidden_size
        self.where = str(self._folder)
        files = self._files()
        self._dataset = ArrowDataset(self._dataset_folder(options))
        entries, refused = _entries(files, len(self._dataset))
        super().__init__(entries, refused)

    def facts(self) -> SourceFacts:
        """As `StateSource.facts`."""
        notes = []
        if self.first.dtype == FP8:
            notes.append(
                "The states were rounded to float8 (3 bits of mantissa) when they were extracted; "
                "they come in as bfloat16 and are no better for it."
            )
        return SourceFacts(
            slots=self.first.slots,
            norm_state=NormState.PRE,
            dtype=None if self.first.dtype == FP8 else self.first.dtype,
            notes=notes,
        )

    def _open(self, entry: Entry) -> _Sample:
        file = SafetensorsFile(self._folder / entry.place, entry.place)
        stored, scales = _stored(file, entry.place, self._hidden_size)
        return _Sample(file=file, dataset=self._dataset, entry=entry, stored=stored, scales=scales)

    def _files(self) -> dict[int, list[str]]:
        if not self._folder.is_dir():
            raise InputError(
                f"{self._folder} is not a folder. Name the folder with the hs_*.safetensors files."
            )
        files: dict[int, list[str]] = {}
        for name in _names(self._folder):
            matched = NAME.fullmatch(name)
            if matched:
                files.setdefault(int(matched[1]), []).append(name)
        if not files:
            raise InputError(
                f"{self._folder} holds no hs_*.safetensors file. Name the folder that "
                "generate-offline-data wrote."
            )
        return files

    def _dataset_folder(self, options: SourceOptions) -> Path:
        if options.dataset is not None:
            return options.dataset
        for folder in (self._folder, self._folder.parent):
            if is_arrow_dataset(folder):
                return folder
        raise InputError(
            f"Neither {self._folder} nor the folder above holds the data set with the loss masks "
            "(state.json, dataset_info.json, data-*.arrow). Name it with --dataset."
        )


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One file whose header fits."""

    file: SafetensorsFile
    dataset: ArrowDataset
    entry: Entry
    stored: Stored
    scales: str | None

    def tokens(self) -> Tokens:
        place, row = self.entry.place, self.entry.row
        ids = token_ids(self.file.read("token_ids"), place)
        wanted = self.dataset.input_ids(row)
        if not np.array_equal(ids, wanted):
            raise refusals.refusal(
                refusals.TOKENS_DIFFER,
                place,
                _difference(ids, wanted),
                f"the token ids of row {row} of the data set",
                "The data set was prepared anew since; extract it again, or name the set that the "
                "files were made from with --dataset.",
            )
        return Tokens(
            input_ids=ids, loss_mask=loss_mask(self.dataset.loss_mask(row), len(ids), place)
        )

    def states(self) -> list[npt.NDArray[Any]]:
        states = self.file.read("hidden_states")  # [T, slots, H]
        slots = range(states.shape[1])
        if self.scales is None:
            return [states[:, slot] for slot in slots]
        scales = self.file.read(self.scales).reshape(-1, 1)  # [T, 1]
        return [bfloat16_bits(FLOAT8[FP8][states[:, slot]] * scales) for slot in slots]


def _stored(file: SafetensorsFile, place: str, hidden_size: int) -> tuple[Stored, str | None]:
    tensors = file.tensors
    absent = [name for name in ("hidden_states", "token_ids") if name not in tensors]
    if absent:
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"tensors {', '.join(sorted(tensors)) or 'none'}",
            "hidden_states and token_ids",
            "Is it a file of speculators' connector?",
        )
    states, ids = tensors["hidden_states"], tensors["token_ids"]
    if len(states.shape) != 3 or states.shape[2] != hidden_size or states.shape[1] == 0:
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"hidden_states {list(states.shape)}",
            f"[tokens, slots, {hidden_size}], the target's hidden size",
            "Is it the right --model? Else extract it again.",
        )
    if ids.shape != states.shape[:1]:
        raise refusals.refusal(
            refusals.LENGTH,
            place,
            f"{states.shape[0]} rows of states beside token_ids {list(ids.shape)}",
            "one row a token",
            "A prefix cache that was left on returns fewer rows; extract it again.",
        )
    dtype = _DTYPES.get(states.dtype)
    if dtype is None:
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"hidden_states of {states.dtype}",
            f"one of {', '.join(_DTYPES)}",
            "Cast it in the source.",
        )
    return Stored(slots=states.shape[1], dtype=dtype), _scales(file, place, dtype)


def _scales(file: SafetensorsFile, place: str, dtype: str) -> str | None:
    name = next((name for name in SCALES if name in file.tensors), None)
    if dtype != FP8:
        return None
    tokens = file.tensors["hidden_states"].shape[0]
    if name is None or (tensor := file.tensors[name]).dtype != "F32" or tensor.shape[0] != tokens:
        found = "no scales" if name is None else f"{name} {list(file.tensors[name].shape)}"
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"float8 states with {found}",
            f"{SCALES[0]} float32 [{tokens}, 1, 1], a scale a token",
            "Without them the values are not known; extract it again.",
        )
    return name


def _entries(files: dict[int, list[str]], rows: int) -> tuple[list[Entry], dict[str, SampleError]]:
    """Entries of all rows and all files, and why some are refused."""
    entries: list[Entry] = []
    refused: dict[str, SampleError] = {}
    for row in sorted({*range(rows), *files}):
        names = sorted(files.get(row, [f"hs_{row}.safetensors"]))
        entries += [Entry(place=name, row=row) for name in names]
        for name in names:
            why = _why_not(name, row, names, present=row in files, rows=rows)
            if why is not None:
                refused[name] = why
    return entries, refused


def _why_not(
    name: str, row: int, names: list[str], *, present: bool, rows: int
) -> SampleError | None:
    if not present:
        return refusals.missing(name, f"a file for row {row} of the data set")
    if row >= rows:
        return refusals.refusal(
            refusals.WITHOUT_ROW,
            name,
            f"the data set has no row {row}",
            f"rows 0 to {rows - 1}",
            "Without its loss mask it can't be trained on; name the data set that it was made "
            "from with --dataset.",
        )
    if len(names) > 1:
        return refusals.refusal(
            refusals.DUPLICATE,
            name,
            f"{' and '.join(names)} are both row {row}",
            "one file a row",
            "Delete the wrong one.",
        )
    return None


def _difference(ids: npt.NDArray[np.int32], wanted: npt.NDArray[Any]) -> str:
    if len(ids) != len(wanted):
        return f"{len(ids)} token ids where the data set has {len(wanted)}"
    at = int(np.argmax(ids != wanted))
    return f"token {at} is {ids[at]} where the data set has {wanted[at]}"


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise InputError(f"{folder} can't be listed: {error.strerror}.") from None
