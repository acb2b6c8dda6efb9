"""Dumps in the manner of EAGLE-1 and EAGLE-2: `data_n.ckpt`, a sample and one state a token.

Checked against SafeAILab/EAGLE eagle/ge_data/ge_data_all_vicuna.py (2320d52): a `torch.save` of
`input_ids` `[T]`, `hidden_state` `[T, H]` and `loss_mask` `[T]`, in folders numbered by process.
The state is Hugging Face's last, so the final norm was applied. HASS writes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.interop.columns import loss_mask, same_length, slots_of, token_ids, without_batch
from eagle3data.interop.floats import dtype_name
from eagle3data.interop.opened import SourceOfSamples, Stored
from eagle3data.interop.source import Entry, SourceFacts, SourceOptions, Tokens
from eagle3data.interop.source_files import files_below, root_of
from eagle3data.interop.specforge import ONE_SLOT, row_of
from eagle3data.interop.torch_file import tensors, values
from eagle3data.schema.layers import NormState

_NEEDED = ("input_ids", "loss_mask", "hidden_state")


def is_dump(name: str) -> bool:
    """Whether a file's name is that of a sample."""
    return name.startswith("data_") and name.endswith(".ckpt") and name[5:-5].isdigit()


class EagleSource(SourceOfSamples):
    """A `StateSource` of one-layer dumps, folder by folder, by their numbers."""

    format = "eagle"

    def __init__(self, options: SourceOptions, hidden_size: int) -> None:
        """List the files.

        Raises:
            InputError: nothing at the path.
        """
        self._root, self.where = root_of(options.path), str(options.path)
        self._hidden_size = hidden_size
        places = files_below(options.path, is_dump)
        super().__init__([Entry(place=place, row=row_of(place)) for place in places], {})

    def facts(self) -> SourceFacts:
        """As `StateSource.facts`."""
        return SourceFacts(
            slots=self.first.slots,
            norm_state=NormState.POST,
            dtype=self.first.dtype,
            notes=[
                ONE_SLOT,
                "The slot had the final norm applied, which can't be undone.",
            ],
        )

    def _open(self, entry: Entry) -> _Sample:
        place = entry.place
        stored = tensors(self._root / place, place, _NEEDED)
        if stored.get("aux_hidden_state") is not None:
            raise refusals.refusal(
                refusals.LAYOUT,
                place,
                "it holds aux states too",
                "one state a token",
                "It is SpecForge's: name it with --format specforge.",
            )
        ids = token_ids(values(stored["input_ids"], place, "input_ids"), place)
        mask = loss_mask(values(stored["loss_mask"], place, "loss_mask"), len(ids), place)
        states = without_batch(values(stored["hidden_state"], place, "hidden_state"), 2)
        if slots_of(states, self._hidden_size, place, "hidden_state") != 1:
            raise refusals.wide(place, states.shape[1], self._hidden_size)
        same_length("hidden_state", len(states), len(ids), place)
        return _Sample(
            input_ids=ids,
            loss_mask=mask,
            hidden_state=states,
            stored=Stored(slots=1, dtype=str(dtype_name(states))),
        )


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One file's arrays, mapped."""

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    hidden_state: npt.NDArray[Any]
    stored: Stored

    def tokens(self) -> Tokens:
        return Tokens(input_ids=self.input_ids, loss_mask=self.loss_mask)

    def states(self) -> list[npt.NDArray[Any]]:
        return [self.hidden_state]
