"""Where training starts: fresh parameters, or a draft that was trained or published before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import Numbering, from_canonical, to_canonical
from eagle3data.schema.manifest import TargetModel
from eagle3data.trainer.config import ModelSection
from eagle3data.trainer.published import PublishedDraft, open_draft
from eagle3data.trainer.saved import DraftDescription, SavedDraft

if TYPE_CHECKING:
    from torch import Tensor

_SHAPE = (
    "draft_vocab_size",
    "norm_before_residual",
    "fc_norm",
    "norm_output",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rope_parameters",
)
"""Settings of a draft that a draft to start from has decided already."""


def starting_draft(
    section: ModelSection, target: TargetModel, aux_layers: list[int], embeddings: Tensor
) -> SavedDraft | None:
    """The draft that `model.init_from` names, checked against target and data; None without one.

    Args:
        section: the run's `model` settings.
        target: whose states are trained on.
        aux_layers: canonical ids of the states that `fc` will read.
        embeddings: `[V, H]`, the target's.

    Raises:
        InputError: no draft there, or one of another target, other layers or other settings.
    """
    if section.init_from is None:
        return None
    numbering = Numbering(section.init_numbering) if section.init_numbering else None
    found = open_draft(
        section.init_from, revision=section.init_revision, target=target, numbering=numbering
    )
    draft = found.draft
    _check_target(draft.description, target, section.init_from)
    _check_layers(draft.description, aux_layers, section, target)
    _check_settings(draft.description, section)
    _check_embeddings(found, embeddings, section.init_from)
    return draft


def _check_target(description: DraftDescription, target: TargetModel, source: str) -> None:
    """Of a run's own checkpoint; a published draft was checked when it was read."""
    mine = (
        description.target_layers,
        description.config.hidden_size,
        description.config.vocab_size,
    )
    theirs = (target.num_hidden_layers, target.hidden_size, target.vocab_size)
    if mine != theirs:
        raise InputError(
            f"{source} is a draft for a target of {mine[0]} layers, hidden size {mine[1]} and "
            f"{mine[2]} tokens; {target.name} has {theirs[0]}, {theirs[1]} and {theirs[2]}. Start "
            "from a draft of this target."
        )


def _check_layers(
    description: DraftDescription, aux_layers: list[int], section: ModelSection, target: TargetModel
) -> None:
    if description.aux_layers == aux_layers:
        return
    count = target.num_hidden_layers
    hint = ""
    for numbering in (Numbering.VLLM, Numbering.SGLANG):
        other = Numbering.SGLANG if numbering is Numbering.VLLM else Numbering.VLLM
        if 0 in description.aux_layers and other is Numbering.SGLANG:
            continue
        ids = from_canonical(description.aux_layers, other, count)
        if max(ids) < count and to_canonical(ids, numbering, count) == aux_layers:
            hint = (
                f" If its ids {ids} are {numbering.value}'s, they are those: set "
                f"model.init_numbering={numbering.value}."
            )
    raise InputError(
        f"{section.init_from} reads the layers {description.aux_layers} (canonical ids); this run "
        f"trains on {aux_layers}, and an fc that was trained on other layers is worth nothing "
        f"there.{hint} Else choose the layers with model.aux_layers, or extract with --layers."
    )


def _check_settings(description: DraftDescription, section: ModelSection) -> None:
    shape = description.config
    differing = [
        f"model.{name} is {getattr(section, name)!r}, the draft's is {getattr(shape, name)!r}"
        for name in _SHAPE
        if name in section.model_fields_set and getattr(section, name) != getattr(shape, name)
    ]
    if section.lm_head is not None:
        differing.append(f"model.lm_head is {section.lm_head!r}, and would replace the draft's own")
    if differing:
        raise InputError(
            f"{section.init_from} has its own shape: {'; '.join(differing)}. Leave those out."
        )


def _check_embeddings(found: PublishedDraft, embeddings: Tensor, source: str) -> None:
    """A draft that came with embeddings of its own would lose them here."""
    own = found.embeddings
    if own is None:
        return
    import torch

    if own.shape != embeddings.shape or not torch.equal(own.bfloat16(), embeddings.bfloat16()):
        raise InputError(
            f"{source} comes with embeddings that are not the target's. Training uses the "
            "target's, which this draft was not trained with, so it can't be started from."
        )
