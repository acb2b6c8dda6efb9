"""Read a draft that somebody published, in any of the layouts, from a folder or the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import Numbering
from eagle3data.schema.manifest import TargetModel
from eagle3data.schema.target import model_folder, read_json
from eagle3data.trainer.checkpoint import find_draft
from eagle3data.trainer.draft import AUX_STATES, Draft, DraftConfig
from eagle3data.trainer.export import CONFIG, EMBEDDINGS
from eagle3data.trainer.layouts import OURS, describe_published, is_published, own_name
from eagle3data.trainer.saved import SavedDraft, read_draft
from eagle3data.trainer.vocab import VocabularyMap
from eagle3data.trainer.weight_files import (
    PATTERNS,
    PICKLE,
    SAFETENSORS,
    has_weights,
    read_weights,
)

if TYPE_CHECKING:
    from torch import Tensor

_UNUSED = ("rotary_emb.inv_freq",)
"""Endings of tensors that follow from the config: old files hold them, no loader needs them."""


@dataclass(frozen=True, kw_only=True)
class PublishedDraft:
    """A published draft, checked.

    Attributes:
        draft: under our names, in the dtypes that it is stored in.
        embeddings: `[V, H]` where the publisher put the target's (or their own) in, else None.
    """

    draft: SavedDraft
    embeddings: Tensor | None


def open_draft(
    source: str,
    *,
    revision: str | None = None,
    target: TargetModel | None = None,
    numbering: Numbering | None = None,
) -> PublishedDraft:
    """Open a run's folder, a checkpoint, or a published draft.

    Args:
        source: a folder, or a hub id of a published draft.
        revision: hub revision.
        target: the target; needed for a draft that this package did not write.
        numbering: whose layer ids are in it (see `layouts.describe_published`).

    Raises:
        InputError: no draft there, or one that can't be used; says what is wrong with it.
    """
    path = Path(source).expanduser()
    if path.is_dir() and not (path / CONFIG).is_file():
        return PublishedDraft(draft=read_draft(find_draft(path)), embeddings=None)
    return read_published(_fetched(source, revision), target=target, numbering=numbering)


def read_published(
    folder: Path, *, target: TargetModel | None = None, numbering: Numbering | None = None
) -> PublishedDraft:
    """Read a published draft's folder; see `open_draft`."""
    description = describe_published(
        read_json(folder / CONFIG), str(folder / CONFIG), target=target, numbering=numbering
    )
    if len(set(description.aux_layers)) != AUX_STATES:
        raise InputError(
            f"{folder / CONFIG} names the layers {description.aux_layers} (canonical ids); a "
            f"draft reads {AUX_STATES} different ones."
        )
    found = read_weights(folder)
    tensors = {own_name(name): t for name, t in found.items() if not name.endswith(_UNUSED)}
    vocabulary = _vocabulary(tensors, description.config, folder)
    embeddings = tensors.pop(EMBEDDINGS, None)
    _check_tensors(tensors, description.config, folder)
    draft = SavedDraft(description=description, parameters=tensors, vocabulary=vocabulary)
    return PublishedDraft(draft=draft, embeddings=embeddings)


def is_published_folder(path: Path) -> bool:
    """Whether a folder holds a draft in one of the layouts."""
    return (path / CONFIG).is_file() and is_published(read_json(path / CONFIG))


def is_for_sglang(path: Path) -> bool:
    """Whether this package wrote a folder with SGLang's layer ids."""
    ours = read_json(path / CONFIG).get(OURS) or {}
    return bool(ours.get("numbering") == Numbering.SGLANG)


def _fetched(source: str, revision: str | None) -> Path:
    """The folder of a draft; from the hub its safetensors come, or pickles if it has none."""
    folder = model_folder(source, revision, [CONFIG, *PATTERNS[SAFETENSORS]])
    if not Path(source).expanduser().is_dir() and not has_weights(folder, SAFETENSORS):
        folder = model_folder(source, revision, [CONFIG, *PATTERNS[PICKLE]])
    return folder


def _vocabulary(tensors: dict[str, Tensor], shape: DraftConfig, folder: Path) -> VocabularyMap:
    """Take `d2t` and `t2d` out of the tensors; a draft of the whole vocabulary needs neither."""
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    size, whole = shape.draft_vocab_size, shape.vocab_size
    if d2t is None and size == whole:
        d2t_values = np.zeros(size, dtype=np.int64)
    elif d2t is None:
        raise InputError(
            f"{folder} has no d2t, so which {size} of the target's {whole} tokens it drafts is "
            "not known."
        )
    else:
        d2t_values = d2t.numpy().astype(np.int64)
    draft_ids = d2t_values + np.arange(len(d2t_values))
    if len(d2t_values) != size or draft_ids.min(initial=0) < 0 or draft_ids.max(initial=0) >= whole:
        raise InputError(
            f"{folder}: d2t has {len(d2t_values)} entries that lead to tokens {draft_ids.min()} to "
            f"{draft_ids.max()}; expected {size} of 0 to {whole - 1}. It must hold offsets (target "
            "id less draft id)."
        )
    if t2d is None:
        mask = np.zeros(whole, dtype=np.bool_)
        mask[draft_ids] = True
    else:
        mask = t2d.numpy().astype(np.bool_)
    if len(mask) != whole:
        raise InputError(f"{folder}: t2d has {len(mask)} entries, expected {whole}.")
    try:
        return VocabularyMap(d2t=d2t_values, t2d=mask)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


def _check_tensors(tensors: dict[str, Tensor], shape: DraftConfig, folder: Path) -> None:
    """Refuse tensors that are missing, unknown, of another shape, or not finite."""
    import torch

    with torch.device("meta"):
        empty = Draft(shape, torch.empty(shape.vocab_size, shape.hidden_size))
    expected = {name: list(tensor.shape) for name, tensor in empty.state_dict().items()}
    problems = []
    if missing := sorted(expected.keys() - tensors.keys()):
        problems.append(f"it lacks {', '.join(missing)}")
    if unknown := sorted(tensors.keys() - expected.keys()):
        problems.append(f"it holds {', '.join(unknown)}, which no draft of its config has")
    problems += [
        f"{name} is {list(tensors[name].shape)}, expected {size}"
        for name, size in expected.items()
        if name in tensors and list(tensors[name].shape) != size
    ]
    problems += [
        f"{name} is not finite" for name, one in tensors.items() if not bool(one.isfinite().all())
    ]
    if problems:
        raise InputError(
            f"{folder} can't be loaded as a draft: {'; '.join(problems)} (names as in SafeAI's "
            f"layout; layers.0 is midlayer there)."
        )
