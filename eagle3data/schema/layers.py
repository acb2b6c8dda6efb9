"""Layer numbering: which residual stream an id names, in ours and in each project's numbering.

Canonical id `k` is the residual stream ENTERING decoder layer `k`: 0 is the embeddings, `N`
(the number of decoder layers) is what leaves the last layer, before the final norm. vLLM
numbers this way. Hugging Face's `hidden_states[k]` is the same tensor for `k < N`, but its
`[N]` has the final norm applied. SGLang, SpecForge and TorchSpec number by the OUTPUT of
layer `k`: theirs is one lower.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from eagle3data.schema.errors import LayerError


class Numbering(StrEnum):
    """Who counts, and so what an integer means."""

    CANONICAL = "canonical"
    VLLM = "vllm"
    SGLANG = "sglang"
    HUGGINGFACE = "huggingface"


class NormState(StrEnum):
    """Whether the final layer was kept before (`pre`) or after (`post`) the final norm."""

    PRE = "pre"
    POST = "post"


_OFFSET_TO_CANONICAL = {
    Numbering.CANONICAL: 0,
    Numbering.VLLM: 0,
    Numbering.SGLANG: 1,
    Numbering.HUGGINGFACE: 0,
}


def default_layers(num_hidden_layers: int) -> list[int]:
    """The layers `auto` captures: `[2, N//2, N-3, N]`, without duplicates on shallow models.

    Args:
        num_hidden_layers: decoder layers of the target, N.

    Returns:
        Ascending canonical ids; the last is always N, the final layer before its norm.
        A target of fewer than six layers can't offer three distinct aux layers at these
        places; the missing ones are taken from the lowest layers that are still free.

    Raises:
        LayerError: the target has fewer than three layers (EAGLE-3 fuses three aux states).
    """
    n = num_hidden_layers
    if n < 3:
        raise LayerError(
            f"the target has {n} decoder layers; EAGLE-3 needs three distinct aux layers below "
            "the final one, so at least 3. Name the layers yourself with --layers."
        )
    aux: list[int] = []
    for wanted in [2, n // 2, n - 3, *range(n)]:
        if 0 <= wanted < n and wanted not in aux and len(aux) < 3:
            aux.append(wanted)
    return [*sorted(aux), n]


def to_canonical(
    layers: Sequence[int], numbering: Numbering, num_hidden_layers: int, *, post_norm: bool = False
) -> list[int]:
    """Convert ids as `numbering` counts them to canonical ids, keeping their order.

    Args:
        layers: ids in `numbering`.
        numbering: who counted.
        num_hidden_layers: decoder layers of the target, N.
        post_norm: the caller knows that Hugging Face's `[N]` carries the final norm and
            records it so (`norm_state = post`); without it that id is refused.

    Raises:
        LayerError: an id outside the target, or Hugging Face's N without `post_norm`.
    """
    n = num_hidden_layers
    converted = [layer + _OFFSET_TO_CANONICAL[numbering] for layer in layers]
    for layer, canonical in zip(layers, converted, strict=True):
        if not 0 <= canonical <= n:
            low = -_OFFSET_TO_CANONICAL[numbering]
            raise LayerError(
                f"layer {layer} ({numbering} numbering) does not exist in a target of {n} decoder "
                f"layers: ids go from {low} to {n + low}."
            )
        if numbering is Numbering.HUGGINGFACE and canonical == n and not post_norm:
            raise LayerError(
                f"Hugging Face's hidden_states[{n}] is AFTER the final norm, canonical layer {n} "
                "is before it. Capture the last decoder layer's output instead, or record the "
                "final layer as post-norm."
            )
    return converted


def from_canonical(
    layers: Sequence[int], numbering: Numbering, num_hidden_layers: int
) -> list[int]:
    """Convert canonical ids to the ids that `numbering` uses for the same tensors.

    Raises:
        LayerError: the tensor has no id there (SGLang can't name the embeddings, Hugging
            Face can't name the final layer before its norm).
    """
    n = num_hidden_layers
    for layer in layers:
        if not 0 <= layer <= n:
            raise LayerError(f"canonical layer {layer} is outside 0..{n}.")
        if numbering is Numbering.SGLANG and layer == 0:
            raise LayerError("SGLang numbers layer outputs; it has no id for the embeddings (0).")
        if numbering is Numbering.HUGGINGFACE and layer == n:
            raise LayerError(
                f"Hugging Face has no id for layer {n} before the final norm: its "
                f"hidden_states[{n}] is after it."
            )
    return [layer - _OFFSET_TO_CANONICAL[numbering] for layer in layers]


def parse_layers(
    text: str, num_hidden_layers: int, numbering: Numbering | None = None
) -> list[int]:
    """Read `--layers`: `auto`, or ids separated by commas; ascending canonical ids come back.

    Engines return slots in ascending order whatever order was asked (vLLM does so without a
    word), so an order other than ascending is refused rather than silently changed.

    Raises:
        LayerError: not integers, duplicates, not ascending, outside the target, or a list
            without the final layer whose numbering was not stated.
    """
    if text.strip() == "auto":
        return default_layers(num_hidden_layers)
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        raise LayerError(
            f"--layers {text!r} is neither 'auto' nor integers separated by commas, "
            f"for example {','.join(map(str, default_layers(num_hidden_layers)))}."
        ) from None
    if sorted(set(ids)) != ids:
        raise LayerError(
            f"--layers {text}: ids must ascend and not repeat, since engines return the slots "
            f"in ascending order. Write {','.join(map(str, sorted(set(ids))))}."
        )
    layers = to_canonical(ids, numbering or Numbering.CANONICAL, num_hidden_layers)
    if layers[-1] != num_hidden_layers and numbering is None:
        raise LayerError(
            f"--layers {text}: {missing_final_layer(layers, num_hidden_layers)} "
            "If that is what you want, state whose numbering it is with --numbering."
        )
    return layers


def missing_final_layer(layers: Sequence[int], num_hidden_layers: int) -> str | None:
    """A sentence that says what is wrong with a capture without layer N, or None if it has N."""
    n = num_hidden_layers
    if n in layers:
        return None
    highest = max(layers)
    why = (
        f"{highest} is what ENTERS layer {highest}, {n - highest} short of the end; in SGLang's "
        f"numbering the same id would mean {highest + 1}"
    )
    return (
        f"the final layer {n} is not captured ({why}). A trainer that applies norm and lm_head "
        "to any other layer learns from wrong teacher logits without an error."
    )
