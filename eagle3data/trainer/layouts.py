"""The layouts that drafts are published in: names of tensors, `config.json`, whose layer ids.

SafeAI's plain layout, which SGLang and vLLM both load, calls the layer `midlayer`; SGLang counts
layer outputs (ids one lower), vLLM layer inputs, and neither says so in the file. The layout of
speculators calls the layer `layers.0`, keeps the Llama config in a part of its own, counts as vLLM
does, and means `norm_before_residual` where that key is missing (the plain layout: not).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import Numbering, from_canonical, to_canonical
from eagle3data.schema.manifest import TargetModel
from eagle3data.trainer.draft import AUX_STATES, DraftConfig
from eagle3data.trainer.saved import DraftDescription

ARCHITECTURE = "LlamaForCausalLMEagle3"
SPECULATOR = "Eagle3Speculator"
OURS = "eagle3data"
"""Key in config.json for what a layout has no word for; engines ignore it."""

_OTHER_NAMES = ("Eagle3LlamaForCausalLM",)
_AUX_IDS = "eagle_aux_hidden_state_layer_ids"
_FIRST_LAYER = "midlayer."
_FIRST_OF_LAYERS = "layers.0."
_DRAFTED = 3
"""Tokens that a draft proposes at a time where nobody says otherwise."""

_SWITCHES = ("norm_before_residual", "fc_norm", "norm_output")
"""Variants that a layout names at its top level."""

_MUST_BE = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "norm_before_fc": False,
    "use_aux_hidden_state": True,
    "num_aux_hidden_states": AUX_STATES,
    "logit_scale": 1.0,
    "quantization_config": None,
}
"""What a published config may say only so: anything else is arithmetic that is not done here."""


class ExportFormat(StrEnum):
    """Whose folder is written."""

    SGLANG = "sglang"
    VLLM = "vllm"
    SPECULATORS = "speculators"

    @property
    def numbering(self) -> Numbering:
        """Whose layer ids stand in it."""
        return Numbering.SGLANG if self is ExportFormat.SGLANG else Numbering.VLLM


def is_published(config: dict[str, Any]) -> bool:
    """Whether a `config.json` is of a draft in one of the layouts."""
    names = set(config.get("architectures") or [])
    if names & {ARCHITECTURE, SPECULATOR, *_OTHER_NAMES} or _is_speculator(config):
        return True
    # Some drafts are published under their one layer's name; a draft's vocabulary tells them apart.
    return "LlamaForCausalLM" in names and "draft_vocab_size" in config


def published_name(name: str, form: ExportFormat) -> str:
    """A tensor's name in a layout, from ours."""
    if form is ExportFormat.SPECULATORS and name.startswith(_FIRST_LAYER):
        return _FIRST_OF_LAYERS + name.removeprefix(_FIRST_LAYER)
    return name


def own_name(name: str) -> str:
    """Our name of a tensor, from that of any layout."""
    if name.startswith(_FIRST_OF_LAYERS):
        return _FIRST_LAYER + name.removeprefix(_FIRST_OF_LAYERS)
    return name


def engine_config(description: DraftDescription, form: ExportFormat) -> dict[str, Any]:
    """The `config.json` of an export.

    Raises:
        InputError: the layout has no word for a variant of this draft.
        LayerError: it has no id for one of the aux layers.
    """
    shape = description.config
    if form is ExportFormat.SGLANG:
        _refuse_for_sglang(shape)
    ids = from_canonical(description.aux_layers, form.numbering, description.target_layers)
    ours = {
        "numbering": form.numbering.value,
        **description.model_dump(mode="json", exclude={"config"}),
    }
    if form is ExportFormat.SPECULATORS:
        return _speculator_config(description, ids, ours)
    config = {
        "architectures": [ARCHITECTURE],
        **_llama_config(shape),
        "draft_vocab_size": shape.draft_vocab_size,
        **{name: getattr(shape, name) for name in _SWITCHES},
        "eagle_config": {_AUX_IDS: ids, "use_aux_hidden_state": True},
        OURS: ours,
    }
    if form is ExportFormat.VLLM:
        config[_AUX_IDS] = ids  # vLLM looks at the top level, and takes its default otherwise
    return config


def _refuse_for_sglang(shape: DraftConfig) -> None:
    """SGLang skips what it doesn't know without a word, and would draft something else."""
    odd = [name for name in _SWITCHES if getattr(shape, name)]
    if odd:
        raise InputError(
            f"this draft was trained with {', '.join(odd)}, which SGLang's EAGLE-3 does not have: "
            "it would compute something else without an error. Export it for vLLM."
        )
    if shape.num_hidden_layers > 1:
        raise InputError(
            "this draft has several layers; SGLang's EAGLE-3 layout has the one that it calls "
            "midlayer, and would ignore the others without an error. Export it for vLLM."
        )


def _llama_config(shape: DraftConfig) -> dict[str, Any]:
    rope = shape.rope_parameters
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **shape.model_dump(mode="json", exclude={"draft_vocab_size", *_SWITCHES}),
        # Read by older loaders, which know no rope_parameters.
        "rope_theta": rope["rope_theta"],
        "rope_scaling": scaling if scaling["rope_type"] != "default" else None,
    }


def _speculator_config(
    description: DraftDescription, ids: list[int], ours: dict[str, Any]
) -> dict[str, Any]:
    shape = description.config
    drafted = min(_DRAFTED, description.ttt_steps or _DRAFTED)
    return {
        "architectures": [SPECULATOR],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": shape.hidden_size,
        **{name: getattr(shape, name) for name in _SWITCHES},
        "norm_before_fc": False,
        "embed_requires_grad": False,
        _AUX_IDS: ids,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": {"architectures": [ARCHITECTURE], **_llama_config(shape)},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafted}],
            "verifier": {
                "name_or_path": description.target,
                "architectures": [description.target_architecture],
            },
        },
        OURS: ours,
    }


def describe_published(
    config: dict[str, Any],
    where: str,
    *,
    target: TargetModel | None = None,
    numbering: Numbering | None = None,
) -> DraftDescription:
    """Whose draft a published `config.json` is of, and its shape.

    Args:
        config: its content.
        where: the file, for messages.
        target: the target; needed unless this package wrote the file.
        numbering: whose the layer ids are. By default what the file says or its layout means:
            vLLM's in speculators' layout or where they stand at the top level, where vLLM alone
            looks; SGLang's where `eagle_config` alone has them.

    Raises:
        InputError: another kind of model, a variant that is not known here, or sizes that are not
            the target's.
        LayerError: layers that the target doesn't have.
    """
    if not is_published(config):
        raise InputError(
            f"{where} is not of an EAGLE-3 draft: its architectures are "
            f"{config.get('architectures')}; expected {ARCHITECTURE} or {SPECULATOR}."
        )
    speculator = _is_speculator(config)
    layer = config.get("transformer_layer_config") if speculator else config
    if not isinstance(layer, dict):
        raise InputError(f"{where} has no transformer_layer_config, where its layout keeps sizes.")
    _refuse_variants(config, layer, where)
    shape = _shape(config, layer, where, norm_before_residual=speculator)
    ours = config.get(OURS) or {}
    facts: dict[str, Any]
    if target is not None:
        _check_sizes(shape, target, where)
        facts = {
            "target": target.name,
            "target_architecture": target.architecture,
            "target_layers": target.num_hidden_layers,
            "ttt_steps": ours.get("ttt_steps"),
            "data_set": ours.get("data_set"),
        }
    elif ours:
        facts = {
            key: value for key, value in ours.items() if key not in ("numbering", "aux_layers")
        }
    else:
        raise InputError(
            f"{where} does not say how many layers its target has, so its layer ids can't be "
            "read. Name the target with --model."
        )
    counted = numbering or (Numbering(ours["numbering"]) if ours else _numbering(config))
    try:
        layers = int(facts["target_layers"])
        aux_layers = _aux_layers(config, counted, layers)
        return DraftDescription.model_validate({**facts, "aux_layers": aux_layers, "config": shape})
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(f"{where}: its {OURS!r} entry can't be understood: {error}") from None


def _is_speculator(config: dict[str, Any]) -> bool:
    """By what engines look at: the library itself saves its class under `architectures`."""
    return config.get("speculators_model_type") == "eagle3"


def _eagle(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("eagle_config") or {}


def _numbering(config: dict[str, Any]) -> Numbering:
    own = _is_speculator(config) or _AUX_IDS in config or _AUX_IDS not in _eagle(config)
    return Numbering.VLLM if own else Numbering.SGLANG


def _aux_layers(config: dict[str, Any], numbering: Numbering, layers: int) -> list[int]:
    """Canonical ids; a file without ids means the three that every engine takes by default."""
    ids = config.get(_AUX_IDS) or _eagle(config).get(_AUX_IDS)
    if not ids:
        return [2, layers // 2, layers - 3]
    return to_canonical([int(layer) for layer in ids], numbering, layers)


def _refuse_variants(config: dict[str, Any], layer: dict[str, Any], where: str) -> None:
    said = {**layer, **config, **_eagle(config)}
    odd = [
        f"{key} is {said[key]!r}"
        for key, value in _MUST_BE.items()
        # A key that is there without a value means the default.
        if said.get(key) is not None and said[key] != value
    ]
    kind = layer.get("model_type", "llama")
    if kind != "llama":
        odd.append(f"model_type is {kind!r}")
    if said.get("target_hidden_size") not in (None, layer.get("hidden_size")):
        odd.append(f"target_hidden_size is {said['target_hidden_size']}")
    clear = said.get("fc_norm") or _is_speculator(config) or OURS in config
    if said.get("norm_output") and not clear:
        raise InputError(
            f"{where} says norm_output without fc_norm. In some projects' files that means that "
            "the normed state is fed back, in others' only that there is a final norm, and one "
            "drafts wrongly where the other is meant. Take the key out if it means the latter."
        )
    if odd:
        raise InputError(
            f"{where}: {'; '.join(odd)}. A draft of this trainer is made of Llama layers without "
            f"biases over {AUX_STATES} states of the target's own width, so this one can't be "
            "loaded: it would compute something else than it was trained to."
        )


def _shape(
    config: dict[str, Any], layer: dict[str, Any], where: str, *, norm_before_residual: bool
) -> DraftConfig:
    chosen = {
        "norm_before_residual": config.get("norm_before_residual", norm_before_residual),
        "fc_norm": config.get("fc_norm"),
        "norm_output": config.get("norm_output"),
        "num_hidden_layers": layer.get("num_hidden_layers"),
        "initializer_range": layer.get("initializer_range"),
    }
    try:
        vocabulary = config.get("draft_vocab_size") or layer["vocab_size"]
        return DraftConfig.from_target(layer, draft_vocab_size=vocabulary, **chosen)
    except (KeyError, ValidationError, InputError) as error:
        raise InputError(f"{where} does not describe a draft's sizes: {error}") from None


def _check_sizes(shape: DraftConfig, target: TargetModel, where: str) -> None:
    differing = [
        f"{name} is {getattr(shape, name)} there and {getattr(target, name)} in {target.name}"
        for name in ("hidden_size", "vocab_size")
        if getattr(shape, name) != getattr(target, name)
    ]
    if differing:
        raise InputError(
            f"{where} is of a draft for another target: {'; '.join(differing)}. Give the model "
            "that it was made for."
        )
