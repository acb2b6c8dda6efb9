"""TorchSpec's cache of evaluation batches: `eval_rank_{r}.pt`, a list of batches each.

Checked against lightseekorg/TorchSpec torchspec/training/trainer.py (0e72698) and
torchspec/data/utils.py (1098e20): a batch is a dict of `input_ids`, `attention_mask`, `loss_mask`
`[B, S]`, `hidden_states` `[B, S, k * H]` and `last_hidden_states` `[B, S, H]` (or None), filled
with zeros to a multiple of 256 tokens; `attention_mask` is 1 on what was not filled. The last
state is after the final norm where SGLang made it and before it where vLLM did; the file does not
say. Caches of sequence-parallel runs (`position_ids`) hold parts of samples and are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.interop.columns import (
    loss_mask,
    same_dtype,
    same_length,
    slots_of,
    split,
    token_ids,
)
from eagle3data.interop.floats import dtype_name
from eagle3data.interop.opened import SourceOfSamples, Stored
from eagle3data.interop.source import Entry, SourceFacts, SourceOptions, Tokens
from eagle3data.interop.source_files import files_below, root_of
from eagle3data.interop.torch_file import load, tensors_in, values
from eagle3data.schema.errors import SampleError

NAME = re.compile(r"eval_rank_(\d+)\.pt")
_PLACE = re.compile(r"(.*)#(\d+)\.(\d+)")
_NEEDED = ("input_ids", "attention_mask", "loss_mask", "hidden_states", "last_hidden_states")


def is_cache(name: str) -> bool:
    """Whether a file's name is that of a rank's cache."""
    return NAME.fullmatch(name) is not None


class TorchSpecSource(SourceOfSamples):
    """A `StateSource` of evaluation caches: rank by rank, batch by batch."""

    format = "torchspec"

    def __init__(self, options: SourceOptions, hidden_size: int) -> None:
        """Map the files and count their samples.

        Raises:
            InputError: nothing at the path.
        """
        self._root, self.where = root_of(options.path), str(options.path)
        self._hidden_size = hidden_size
        # Tensors are mapped, so what is kept is a list of addresses.
        self._batches = lru_cache(maxsize=None)(self._load)
        entries: list[Entry] = []
        refused: dict[str, SampleError] = {}
        for file in files_below(options.path, is_cache):
            try:
                places = [
                    f"{file}#{number}.{row}"
                    for number, batch in enumerate(self._batches(file))
                    for row in range(_rows(batch))
                ]
            except SampleError as error:
                places, refused[file] = [file], error
            entries += [Entry(place=place, row=len(entries) + i) for i, place in enumerate(places)]
        super().__init__(entries, refused)

    def facts(self) -> SourceFacts:
        """As `StateSource.facts`."""
        return SourceFacts(
            slots=self.first.slots,
            dtype=self.first.dtype,
            notes=[
                "Made with SGLang, the last slot is after the final norm; with vLLM, before it.",
                "A cache keeps the batches in the order in which they were answered.",
            ],
        )

    def _load(self, file: str) -> list[Any]:
        loaded = load(self._root / file, file)
        if not isinstance(loaded, list):
            raise refusals.refusal(
                refusals.LAYOUT,
                file,
                f"it holds a {type(loaded).__name__}",
                "a list of batches",
                "Is it a rank's cache of evaluation batches?",
            )
        return loaded

    def _open(self, entry: Entry) -> _Sample:
        place = entry.place
        matched = _PLACE.fullmatch(place)
        if matched is None:
            raise refusals.missing(place, f"a place of {self.where}")
        number, row = int(matched[2]), int(matched[3])
        batch = tensors_in(self._batches(matched[1])[number], place, _NEEDED)
        if batch.get("position_ids") is not None:
            raise refusals.refusal(
                refusals.LAYOUT,
                place,
                "a batch of a sequence-parallel run, which holds a part of each sample",
                "whole samples",
                "Make the cache again without sequence parallelism.",
            )
        arrays = {name: values(batch[name], place, name) for name in _NEEDED}
        return self._sample({name: _row(arrays[name], row, place, name) for name in arrays}, place)

    def _sample(self, arrays: dict[str, npt.NDArray[Any]], place: str) -> _Sample:
        length = _true_length(arrays["attention_mask"], place)
        stored_length = len(arrays["attention_mask"])
        ids = token_ids(arrays["input_ids"], place)
        mask = loss_mask(arrays["loss_mask"].reshape(-1), len(ids), place)
        aux, final = arrays["hidden_states"], arrays["last_hidden_states"]
        same_length("attention_mask", stored_length, len(ids), place)
        for name, states in (("hidden_states", aux), ("last_hidden_states", final)):
            slots_of(states, self._hidden_size, place, name)
            same_length(name, len(states), len(ids), place)
        same_dtype("hidden_states", aux, final, place)
        if final.shape[1] != self._hidden_size:
            raise refusals.wide(place, final.shape[1], self._hidden_size)
        slots = [*split(aux[:length], self._hidden_size), final[:length]]
        return _Sample(
            input_ids=ids[:length],
            loss_mask=mask[:length],
            slots=slots,
            stored=Stored(slots=len(slots), dtype=str(dtype_name(final))),
        )


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One row of a batch, mapped, without what was filled up."""

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    slots: list[npt.NDArray[Any]]
    stored: Stored

    def tokens(self) -> Tokens:
        return Tokens(input_ids=self.input_ids, loss_mask=self.loss_mask)

    def states(self) -> list[npt.NDArray[Any]]:
        return list(self.slots)


def _rows(batch: Any) -> int:
    """Samples of a batch; a batch that is none is one entry, refused when it is opened."""
    ids = batch.get("input_ids") if isinstance(batch, dict) else None
    shape: tuple[int, ...] = getattr(ids, "shape", ())
    return int(shape[0]) if len(shape) == 2 else 1


def _row(array: npt.NDArray[Any], row: int, place: str, name: str) -> npt.NDArray[Any]:
    if array.ndim < 2 or row >= len(array):
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"{name} is {list(array.shape)}",
            "a row for each sample of the batch",
            "Make the cache again.",
        )
    found: npt.NDArray[Any] = array[row]
    return found


def _true_length(attention_mask: npt.NDArray[Any], place: str) -> int:
    ones = int(np.count_nonzero(attention_mask))
    if not ones or not attention_mask[:ones].all():
        raise refusals.refusal(
            refusals.LENGTH,
            place,
            f"an attention mask with {ones} ones that don't lead it",
            "ones, then zeros",
            "Only padding on the right can be stripped; make the cache again.",
        )
    return ones
