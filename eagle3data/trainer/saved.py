"""A draft as files: its parameters under their published names, its vocabulary, whose draft it is.

Both a checkpoint and an export start from this; an export renames what its engine expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from eagle3data.schema.errors import InputError
from eagle3data.schema.target import read_json
from eagle3data.trainer.draft import DraftConfig
from eagle3data.trainer.files import write_json
from eagle3data.trainer.vocab import VocabularyMap

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "draft.safetensors"
DESCRIPTION = "draft.json"


class DraftDescription(BaseModel):
    """What must be known of a draft besides its tensors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: DraftConfig
    target: str
    target_architecture: str
    target_layers: int
    aux_layers: list[int]
    """Canonical ids."""
    ttt_steps: int | None
    """None where its publisher does not say."""
    data_set: str | None
    """`Manifest.identity` of the states it was trained on; None where that is not known."""


@dataclass(frozen=True, kw_only=True)
class SavedDraft:
    """A draft read back.

    Attributes:
        description: whose draft it is, and its shape.
        parameters: published name to tensor, on the CPU.
        vocabulary: its tokens.
    """

    description: DraftDescription
    parameters: dict[str, Tensor]
    vocabulary: VocabularyMap


def write_draft(folder: Path, draft: SavedDraft) -> None:
    """Write a draft's two files into an existing folder."""
    from safetensors.torch import save

    # Bytes first: safetensors' own writer has an error of its own for a full disk.
    (folder / WEIGHTS).write_bytes(save(draft_tensors(draft)))
    write_json(folder / DESCRIPTION, draft.description.model_dump(mode="json"))


def read_draft(folder: Path) -> SavedDraft:
    """Read what `write_draft` wrote.

    Raises:
        InputError: files that are missing or contradict each other.
    """
    try:
        description = DraftDescription.model_validate(read_json(folder / DESCRIPTION))
    except ValidationError as error:
        wrong = "; ".join(".".join(map(str, item["loc"])) for item in error.errors())
        raise InputError(
            f"{folder / DESCRIPTION} describes no draft (missing or wrong: {wrong})."
        ) from None
    parameters, vocabulary = read_tensors(folder / WEIGHTS)
    return SavedDraft(description=description, parameters=parameters, vocabulary=vocabulary)


def draft_tensors(draft: SavedDraft) -> dict[str, Tensor]:
    """Parameters and vocabulary map as one set of named tensors."""
    import torch

    tensors = {name: tensor.detach().cpu() for name, tensor in draft.parameters.items()}
    tensors["d2t"] = torch.from_numpy(draft.vocabulary.d2t)
    tensors["t2d"] = torch.from_numpy(draft.vocabulary.t2d)
    return tensors


def read_tensors(path: Path) -> tuple[dict[str, Tensor], VocabularyMap]:
    """The reverse of `draft_tensors`, from a safetensors file.

    Raises:
        InputError: not readable, or without `d2t` and `t2d`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} can't be read: {error}") from None
    missing = sorted({"d2t", "t2d"} - set(tensors))
    if missing:
        raise InputError(f"{path} has no {' and no '.join(missing)}; expected a draft's tensors.")
    vocabulary = VocabularyMap(d2t=tensors.pop("d2t").numpy(), t2d=tensors.pop("t2d").numpy())
    return tensors, vocabulary
