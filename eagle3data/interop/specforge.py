"""SpecForge's offline features: `rows_a-b/data_n.ckpt`, or `.ckpt.gz`, a sample each.

Checked against SpecForge's scripts/prepare_hidden_states.py (f1424fb and later, whose keys the
reader of specforge 0.2.0 still names): a `torch.save` of `input_ids` `[S]`, `loss_mask` `[S]`,
`aux_hidden_state` `[1, S, k * H]` and `hidden_state` `[1, S, H]`, the last after the final norm.
Without aux states (`aux_hidden_state` absent or None) one slot is left.

Samples of a batch are stored as long as the longest, filled with the padding id, mask 0; older
versions stored padded ids beside states of the true length. Padding is stripped: by the length of
the states where they are shorter, else the trailing run of the padding id under mask 0. Where the
padding id is also a real token's, a run of such tokens at the end, never trained on, goes with it.
"""

from __future__ import annotations

import re
from collections import defaultdict
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
from eagle3data.interop.torch_file import tensors, values
from eagle3data.schema.errors import SampleError
from eagle3data.schema.layers import NormState

NAME = re.compile(r"data_(\d+)\.ckpt(\.gz)?")
GROUP = re.compile(r"rows_\d+-\d+")
_NEEDED = ("input_ids", "loss_mask", "hidden_state")
ONE_SLOT = "One state a token: EAGLE-3 needs three aux states, so it can't train on this set."


def is_feature_file(name: str) -> bool:
    """Whether a file's name is that of a sample."""
    return NAME.fullmatch(name) is not None


class SpecForgeSource(SourceOfSamples):
    """A `StateSource` of SpecForge's feature files, by their numbers."""

    format = "specforge"

    def __init__(self, options: SourceOptions, hidden_size: int) -> None:
        """List the files.

        Raises:
            InputError: nothing at the path.
        """
        self._root, self.where = root_of(options.path), str(options.path)
        self._hidden_size = hidden_size
        self._pad = options.pad_token_id
        places = files_below(options.path, is_feature_file)
        entries = [Entry(place=place, row=row_of(place)) for place in places]
        super().__init__(entries, _twice(entries))

    def facts(self) -> SourceFacts:
        """As `StateSource.facts`."""
        notes = [
            "The last slot had the final norm applied, which can't be undone.",
            "File numbers follow the processes that extracted, not the rows of the prompts.",
        ]
        if self._pad is None:
            notes.append("No padding id is known, so stored padding is kept: give --pad-token-id.")
        if self.first.slots == 1:
            notes.append(ONE_SLOT)
        return SourceFacts(
            slots=self.first.slots, norm_state=NormState.POST, dtype=self.first.dtype, notes=notes
        )

    def _open(self, entry: Entry) -> _Sample:
        place = entry.place
        stored = tensors(self._root / place, place, _NEEDED)
        ids = token_ids(values(stored["input_ids"], place, "input_ids"), place)
        mask = loss_mask(values(stored["loss_mask"], place, "loss_mask"), len(ids), place)
        final = without_batch(values(stored["hidden_state"], place, "hidden_state"), 2)
        slots = slots_of(final, self._hidden_size, place, "hidden_state")
        if slots != 1:
            raise refusals.wide(place, final.shape[1], self._hidden_size)
        parts = [final]
        if stored.get("aux_hidden_state") is not None:
            aux = values(stored["aux_hidden_state"], place, "aux_hidden_state")
            aux = without_batch(aux, 2)
            slots += slots_of(aux, self._hidden_size, place, "aux_hidden_state")
            same_dtype("aux_hidden_state", aux, final, place)
            same_length("aux_hidden_state", len(aux), len(final), place, "of hidden_state")
            parts.insert(0, aux)
        length = true_length(ids, mask, len(final), self._pad, place)
        return _Sample(
            input_ids=ids[:length],
            loss_mask=mask[:length],
            parts=[part[:length] for part in parts],
            hidden_size=self._hidden_size,
            stored=Stored(slots=slots, dtype=str(dtype_name(final))),
        )


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One file's arrays, mapped, without padding."""

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    parts: list[npt.NDArray[Any]]
    hidden_size: int
    stored: Stored

    def tokens(self) -> Tokens:
        return Tokens(input_ids=self.input_ids, loss_mask=self.loss_mask)

    def states(self) -> list[npt.NDArray[Any]]:
        return [slot for part in self.parts for slot in split(part, self.hidden_size)]


def true_length(
    ids: npt.NDArray[np.int32],
    mask: npt.NDArray[np.uint8],
    rows: int,
    pad: int | None,
    place: str,
) -> int:
    """Tokens without stored padding.

    Args:
        ids: `[S]`.
        mask: `[S]`.
        rows: of the states; fewer than S where only the ids were padded.
        pad: the padding id, where it is known.
        place: for the refusal.

    Raises:
        SampleError: the states are longer than the ids, shorter by more than padding, or all of
            it is padding.
    """
    length = rows
    if rows >= len(ids):
        same_length("states", rows, len(ids), place)
        kept = np.flatnonzero((ids != pad) | (mask != 0)) if pad is not None else [len(ids) - 1]
        length = int(kept[-1]) + 1 if len(kept) else 0
    else:
        tail, tail_mask = ids[rows:], mask[rows:]
        filler = tail[0] if pad is None else pad
        if tail_mask.any() or (tail != filler).any():
            same_length("states", rows, len(ids), place)
    if not length:
        raise refusals.refusal(
            refusals.LENGTH, place, "it is nothing but padding", "tokens", "Leave it out."
        )
    return length


def row_of(place: str) -> int:
    """The number in a feature file's name."""
    matched = NAME.fullmatch(PurePath(place).name)
    return int(matched[1]) if matched else 0


def _twice(entries: list[Entry]) -> dict[str, SampleError]:
    """Files of one number: below one folder, beside the grouping into `rows_a-b`."""
    groups: dict[tuple[PurePath, int], list[str]] = defaultdict(list)
    for entry in entries:
        folder = PurePath(entry.place).parent
        top = folder.parent if GROUP.fullmatch(folder.name) else folder
        groups[top, entry.row].append(entry.place)
    return {
        place: refusals.refusal(
            refusals.DUPLICATE,
            place,
            f"{' and '.join(places)} are both number {row}",
            "one file a number",
            "Delete the wrong one.",
        )
        for (_, row), places in groups.items()
        if len(places) > 1
        for place in places
    }
