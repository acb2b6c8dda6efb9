"""A data set written as SpecForge trains from it: the inverse of `interop.specforge`.

`rows_a-b/data_{row}.ckpt`, 2,000 files a folder; rows are positions of the data set. SpecForge's
head has no norm, so it needs the final layer after it: a set that keeps it before needs the
target's norm to be applied on the way. Its head and its draft are bfloat16 and multiply states of
no other dtype, so float16 is rounded.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.interop.exporting import ExportedSet, Progress, begin, write_missing
from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage.local import Buffer

_LAYOUT = "specforge"
_GROUP = 2000

Norm = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""The target's final norm: stored states `[T, H]` to the same dtype and shape."""


def write(
    dataset: ExportedSet,
    folder: Path,
    *,
    final_norm: Norm | None = None,
    threads: int = 4,
    progress: Progress | None = None,
) -> int:
    """Write what is not written yet.

    Args:
        dataset: to export.
        folder: empty, or of this export when it was stopped.
        final_norm: applied to the final layer of a set that keeps it before the norm.
        threads: that read and write.
        progress: told the samples that are done.

    Returns:
        Files that were written now.

    Raises:
        InputError: no final layer, no norm where one is needed, or the folder is another's.
        CorruptionError: a sample of the set is damaged.
        SpaceError: the place is full.
    """
    norm = needed_norm(dataset.manifest, final_norm)
    begin(dataset, folder, _LAYOUT)
    return write_missing(
        dataset,
        folder,
        _place,
        lambda sample: _encoded(sample, norm),
        threads=threads,
        progress=progress,
    )


def needed_norm(manifest: Manifest, final_norm: Norm | None) -> Norm | None:
    """The norm that a set's final states still need; None for those after it.

    Raises:
        InputError: SpecForge can't train on the set, or no norm was given where one is needed.
    """
    if len(manifest.layers) < 2 or manifest.layers[-1] != manifest.final_layer:
        raise InputError(
            f"the set keeps layers {manifest.layers}; SpecForge needs aux layers and the final "
            f"one, {manifest.final_layer}. Extract it with those."
        )
    before = manifest.capture.norm_state is NormState.PRE
    if before and final_norm is None:
        raise InputError(
            "the set keeps the final layer before its norm and SpecForge needs it after: give the "
            "target's norm, for which its weights are needed."
        )
    return final_norm if before else None


def _place(row: int) -> str:
    first = row // _GROUP * _GROUP
    return f"rows_{first}-{first + _GROUP}/data_{row}.ckpt"


def features_of(sample: Sample, norm: Norm | None) -> dict[str, Any]:
    """A sample's tensors as their reader knows them.

    Args:
        sample: with its final layer.
        norm: applied to that layer, if any.

    Returns:
        `input_ids` and `loss_mask` `[T]` int64, `aux_hidden_state` `[1, T, aux * H]` and
        `hidden_state` `[1, T, H]` bfloat16.
    """
    import torch

    *aux, final = (sample.hidden_states[layer] for layer in sorted(sample.hidden_states))
    if norm is not None:
        final = norm(final)
    return {
        "input_ids": torch.from_numpy(sample.input_ids.astype(np.int64)),  # [T]
        "loss_mask": torch.from_numpy(sample.loss_mask.astype(np.int64)),  # [T]
        "aux_hidden_state": _tensor(np.concatenate(aux, axis=1)),  # [1, T, aux * H]
        "hidden_state": _tensor(final),  # [1, T, H]
    }


def _encoded(sample: Sample, norm: Norm | None) -> Sequence[Buffer]:
    import torch

    buffer = io.BytesIO()
    torch.save(features_of(sample, norm), buffer)
    return [buffer.getbuffer()]


def _tensor(states: npt.NDArray[Any]) -> Any:
    """States with a batch axis in bfloat16, which uint16 is by its bits."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(states))
    is_bfloat16 = states.dtype == np.uint16
    return (tensor.view(torch.bfloat16) if is_bfloat16 else tensor.to(torch.bfloat16))[None]
