"""A quick look at whole layers: which token does row t hold the state of? Asked before a training.

`validate` judges every sample it probes; this reads a bounded number of windows and says one thing
a layer. Low layers name their own token. Deep ones may name the next one better, so what identity
says of them counts only where the target's head does not say that they foretell the right token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.index import list_values
from eagle3data.schema.layers import NormState
from eagle3data.storage import layout
from eagle3data.storage.arrays import chunk_codec
from eagle3data.validation import next_token, token_identity
from eagle3data.validation.probe_set import as_tensor
from eagle3data.validation.significance import log_threshold
from eagle3data.validation.token_identity import WIDE_SHIFTS, Sequences, frequent_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.storage.model_weights import TargetHead

ROWS = 6144
"""Rows that are read of each layer, about; 0.35 GB of four layers of width 7168."""
WINDOW_ROWS = 128
COLUMNS = 1024
"""Of a row, about so many of its values are compared: enough to name a token."""
IDENTITY, NEXT_TOKEN = "token identity", "next token"
_MIN_CLASSES = 2
_MIN_ROWS = 64
_READERS = 16


@dataclass(frozen=True, kw_only=True)
class LayerShift:
    """What a layer's rows say.

    Attributes:
        layer: canonical id.
        shift: row t holds the state of token t + shift, 0 where all is well; None: can't tell.
        probe: that said so.
        shares: share of the rows that name (or foretell) the token that a row of that shift would.
        rows: tested.
        named: the shift by token identity, where another probe decided.
    """

    layer: int
    shift: int | None
    probe: str
    shares: Mapping[int, float]
    rows: int
    named: int | None = None


def layer_shifts(
    dataset: Dataset, positions: Sequence[int], layers: Sequence[int], head: TargetHead
) -> list[LayerShift]:
    """Look at each layer of a data set.

    Args:
        dataset: opened.
        positions: index rows to choose from; a bounded number of them is read.
        layers: canonical ids, ascending; the last is the final one.
        head: the target's, on any device.

    Returns:
        One reading a layer; nothing can be told of any where tokens hardly repeat.
    """
    import torch

    windows = _read(dataset, _spread(dataset, positions), layers)
    sequences = Sequences.of([window.ids for window in windows])
    log_alpha = log_threshold(len(layers) * len(WIDE_SHIFTS))
    classes = frequent_tokens(sequences) if len(windows) > 1 else torch.empty(0)
    picked = next_token.choose_rows(sequences) if windows else torch.empty(0, dtype=torch.int64)
    found = []
    for layer in layers:
        states = [window.states[layer] for window in windows]
        identity = _identity(layer, states, sequences, classes, log_alpha)
        final = layer == dataset.manifest.final_layer
        if final or identity.shift:
            post = final and dataset.manifest.capture.norm_state is NormState.POST
            following = _following(layer, states, sequences, picked, head, log_alpha, post=post)
            identity = _judged(identity, following, final=final)
        found.append(identity)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Window:
    """Adjacent rows of a sample, `[n, H]` of each layer."""

    ids: list[int]
    states: dict[int, Tensor]


def _spread(dataset: Dataset, positions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Sample, first row and rows of each window: evenly over the samples, and over their places."""
    if not len(positions):
        return []
    lengths = dataset.index["length"].to_numpy()
    rows = max(WINDOW_ROWS, ROWS // len(positions))
    usual = float(np.minimum(lengths[np.asarray(positions)], rows).mean())
    wanted = min(len(positions), max(1, round(ROWS / usual)))
    windows = []
    for at in range(wanted):
        position = int(positions[(2 * at + 1) * len(positions) // (2 * wanted)])
        room = max(0, int(lengths[position]) - rows)
        # Steps of the golden ratio cover beginnings, middles and ends alike.
        first = int(room * (0.618034 * at % 1.0))
        windows.append((position, first, min(rows, int(lengths[position]))))
    return windows


def _read(
    dataset: Dataset, windows: Sequence[tuple[int, int, int]], layers: Sequence[int]
) -> list[_Window]:
    def read(window: tuple[int, int, int]) -> _Window | None:
        position, first, rows = window
        states = {}
        for layer in layers:
            array = layout.states_array(layer)
            codec = chunk_codec(dataset.manifest, array)
            out = np.empty((rows, *codec.shape[1:]), codec.dtype)
            try:
                dataset.read_rows_here(array, position, first, out)
            except CorruptionError:
                return None  # whoever reads the whole sample says so, by name
            states[layer] = as_tensor(out)
        ids = list_values(dataset.index["input_ids"], position)[first : first + rows]
        return _Window(ids=ids.tolist(), states=states)

    with ThreadPoolExecutor(_READERS, "eagle3data-probe") as pool:
        return [window for window in pool.map(read, windows) if window is not None]


def _identity(
    layer: int,
    states: Sequence[Tensor],
    sequences: Sequences,
    classes: Tensor,
    log_alpha: float,
) -> LayerShift:
    if len(classes) < _MIN_CLASSES:
        return LayerShift(layer=layer, shift=None, probe=IDENTITY, shares={}, rows=0)
    step = max(1, states[0].shape[1] // COLUMNS)
    rows, _ = token_identity.features(lambda at: states[at][:, ::step], len(states))
    found = token_identity.measure(rows, sequences, classes, log_alpha)
    return LayerShift(
        layer=layer, shift=found.shift, probe=IDENTITY, shares=found.by_shift, rows=found.tested
    )


def _following(
    layer: int,
    states: Sequence[Tensor],
    sequences: Sequences,
    picked: Tensor,
    head: TargetHead,
    log_alpha: float,
    *,
    post: bool,
) -> LayerShift:
    import torch

    if len(picked) < _MIN_ROWS:
        return LayerShift(layer=layer, shift=None, probe=NEXT_TOKEN, shares={}, rows=0)
    found = next_token.measure(
        head,
        torch.cat(list(states))[picked],
        {shift: sequences.shifted(shift)[picked] for shift in next_token.SHIFTS},
        log_alpha,
        post_norm=post,
        likelihood=False,
    )
    return LayerShift(
        layer=layer,
        # A right row foretells the token one place on.
        shift=None if found.shift is None else found.shift - 1,
        probe=NEXT_TOKEN,
        shares={shift - 1: share for shift, share in found.by_shift.items()},
        rows=len(picked),
    )


def _judged(identity: LayerShift, following: LayerShift, *, final: bool) -> LayerShift:
    """What both probes come to."""
    # Identity alone says nothing of a final layer, which is made to name the next token.
    if final or following.shift == 0:
        return replace(following, named=identity.shift)
    return identity
