"""Model-Optimizer's dumps: `{conversation_id}.pt`, a sample each.

Checked against NVIDIA/Model-Optimizer examples/speculative_decoding/collect_hidden_states
(compute_hidden_states_hf.py 6340546, _vllm.py a8c67e8, _trtllm.py 022cbdb) and its reader,
modelopt/torch/speculative/eagle/utils.py (0bce265): a `torch.save` of `input_ids` `[T]`,
`hidden_states` `[T, H]` (the last), `aux_hidden_states` `[T, k * H]` (empty or absent where none
were kept), `conversation_id`, and in newer ones `loss_mask` `[T]` and `hidden_states_prenorm`.

Where the last is not marked, the file can't tell: their Hugging Face script dumps it after the
final norm, their vLLM script before it. Layer ids are nowhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
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
    without_batch,
)
from eagle3data.interop.floats import dtype_name
from eagle3data.interop.opened import SourceOfSamples, Stored
from eagle3data.interop.source import Entry, SourceFacts, SourceOptions, Tokens
from eagle3data.interop.source_files import files_below, root_of
from eagle3data.interop.specforge import ONE_SLOT
from eagle3data.interop.torch_file import tensors, values
from eagle3data.schema.layers import NormState

NEEDED = ("input_ids", "hidden_states")
_NOT_DUMPS = re.compile(r"eval_rank_\d+\.pt|token_freq\.pt|vocab_mapping\.pt")


def may_be_dump(name: str) -> bool:
    """Whether a file could be a sample; ids of conversations can be any name."""
    return name.endswith(".pt") and _NOT_DUMPS.fullmatch(name) is None


class ModelOptimizerSource(SourceOfSamples):
    """A `StateSource` of dumps, by the numbers in their names."""

    format = "model-optimizer"

    def __init__(self, options: SourceOptions, hidden_size: int) -> None:
        """List the files.

        Raises:
            InputError: nothing at the path.
        """
        self._root, self.where = root_of(options.path), str(options.path)
        self._hidden_size = hidden_size
        places = files_below(options.path, may_be_dump)
        super().__init__([Entry(place=place, row=row) for row, place in enumerate(places)], {})

    def facts(self) -> SourceFacts:
        """As `StateSource.facts`."""
        notes = ["A mask of nothing but ones is what their scripts store without a chat's roles."]
        if self.first.norm_state is None:
            notes.append(
                "Dumped with Hugging Face, the last slot is after the final norm; with vLLM, "
                "before it."
            )
        if self.first.slots == 1:
            notes.append(ONE_SLOT)
        return SourceFacts(
            slots=self.first.slots,
            norm_state=self.first.norm_state,
            dtype=self.first.dtype,
            notes=notes,
        )

    def _open(self, entry: Entry) -> _Sample:
        place = entry.place
        stored = tensors(self._root / place, place, NEEDED)
        ids = token_ids(values(stored["input_ids"], place, "input_ids"), place)
        final = without_batch(values(stored["hidden_states"], place, "hidden_states"), 2)
        slots = slots_of(final, self._hidden_size, place, "hidden_states")
        if slots != 1:
            raise refusals.wide(place, final.shape[1], self._hidden_size)
        same_length("hidden_states", len(final), len(ids), place)
        parts = [final]
        aux = self._aux(stored, place)
        if aux is not None:
            slots += slots_of(aux, self._hidden_size, place, "aux_hidden_states")
            same_dtype("aux_hidden_states", aux, final, place)
            same_length("aux_hidden_states", len(aux), len(ids), place)
            parts.insert(0, aux)
        mask = stored.get("loss_mask")
        return _Sample(
            input_ids=ids,
            loss_mask=None
            if mask is None
            else loss_mask(values(mask, place, "loss_mask"), len(ids), place),
            parts=parts,
            hidden_size=self._hidden_size,
            conversation=str(stored.get("conversation_id", PurePath(place).stem)),
            stored=Stored(
                slots=slots, dtype=str(dtype_name(final)), norm_state=_norm_state(stored)
            ),
        )

    @staticmethod
    def _aux(stored: dict[str, Any], place: str) -> npt.NDArray[Any] | None:
        if stored.get("aux_hidden_states") is None:
            return None
        aux = values(stored["aux_hidden_states"], place, "aux_hidden_states")
        return without_batch(aux, 2) if aux.size else None


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One file's arrays, mapped."""

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8] | None
    parts: list[npt.NDArray[Any]]
    hidden_size: int
    conversation: str
    stored: Stored

    def tokens(self) -> Tokens:
        return Tokens(
            input_ids=self.input_ids,
            loss_mask=self.loss_mask,
            extra={"conversation_id": self.conversation},
        )

    def states(self) -> list[npt.NDArray[Any]]:
        return [slot for part in self.parts for slot in split(part, self.hidden_size)]


def _norm_state(stored: dict[str, Any]) -> NormState | None:
    marked = stored.get("hidden_states_prenorm")
    if marked is None:
        return None
    return NormState.PRE if bool(marked) else NormState.POST
