"""Export a draft the way an inference engine loads it, and read such a folder back.

The layout is SafeAI's, which SGLang and vLLM both load: `config.json` and one
`model.safetensors` of bfloat16 parameters under their published names, `d2t`, `t2d`; the
engines share the target's embeddings. What differs is whose numbering the aux layers are in:
SGLang counts layer outputs (one lower), vLLM layer inputs, and neither says so in the file.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import Numbering, from_canonical, to_canonical
from eagle3data.schema.target import read_json
from eagle3data.trainer.draft import DraftConfig
from eagle3data.trainer.files import new_folder, write_json
from eagle3data.trainer.saved import DraftDescription, SavedDraft, draft_tensors, read_tensors

ARCHITECTURE = "LlamaForCausalLMEagle3"
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_AUX_IDS = "eagle_aux_hidden_state_layer_ids"
_OURS = "eagle3data"
"""Key in config.json for what the layout has no word for; engines ignore it."""


class ExportFormat(StrEnum):
    """Whose folder is written."""

    SGLANG = "sglang"
    VLLM = "vllm"

    @property
    def numbering(self) -> Numbering:
        return Numbering(self.value)


def export_draft(draft: SavedDraft, out: Path, form: ExportFormat) -> None:
    """Write a draft for an engine.

    Args:
        draft: the draft, in any float dtype; bfloat16 is written.
        out: a folder that doesn't exist yet or is empty.
        form: whose.

    Raises:
        InputError: `out` is taken, or the engine has no such variant.
        LayerError: the engine has no id for one of the aux layers.
    """
    import torch
    from safetensors.torch import save

    if form is ExportFormat.SGLANG and draft.description.config.num_hidden_layers > 1:
        raise InputError(
            "this draft has several layers; SGLang's EAGLE-3 layout has the one that it calls "
            "midlayer, and would ignore the others without an error. Export it for vLLM."
        )
    if form is ExportFormat.SGLANG and draft.description.config.norm_before_residual:
        raise InputError(
            "this draft was trained with norm_before_residual, which SGLang's EAGLE-3 does not "
            "have: it would draft from a wrong residual without an error. Export it for vLLM."
        )
    config = engine_config(draft.description, form)
    tensors = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in draft_tensors(draft).items()
    }
    with new_folder(out) as folder:
        write_json(folder / _CONFIG, config)
        (folder / _WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))


def engine_config(description: DraftDescription, form: ExportFormat) -> dict[str, Any]:
    """The `config.json` of an export."""
    shape = description.config
    ids = from_canonical(description.aux_layers, form.numbering, description.target_layers)
    rope = shape.rope_parameters
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    config = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **shape.model_dump(mode="json"),
        # Read by older loaders, which know no rope_parameters.
        "rope_theta": rope["rope_theta"],
        "rope_scaling": scaling if scaling["rope_type"] != "default" else None,
        "eagle_config": {_AUX_IDS: ids, "use_aux_hidden_state": True},
        _OURS: {
            "numbering": form.numbering.value,
            **description.model_dump(mode="json", exclude={"config"}),
        },
    }
    if form is ExportFormat.VLLM:
        config[_AUX_IDS] = ids  # vLLM looks at the top level, and takes its default otherwise
    return config


def load_exported(folder: Path) -> SavedDraft:
    """Read back what `export_draft` wrote.

    Raises:
        InputError: not an export of this package, or tensors that are missing or too many.
    """
    config = read_json(folder / _CONFIG)
    ours = config.get(_OURS)
    if config.get("architectures") != [ARCHITECTURE] or not isinstance(ours, dict):
        raise InputError(
            f"{folder / _CONFIG} is not of a draft that `eagle3data export` wrote: it lacks the "
            f"architecture {ARCHITECTURE} or the {_OURS!r} entry."
        )
    ids = config["eagle_config"][_AUX_IDS]
    aux_layers = to_canonical(ids, Numbering(ours["numbering"]), ours["target_layers"])
    shape = {name: config[name] for name in DraftConfig.model_fields if name in config}
    facts = {key: value for key, value in ours.items() if key != "numbering"}
    description = DraftDescription.model_validate(
        {**facts, "aux_layers": aux_layers, "config": shape}
    )
    parameters, vocabulary = read_tensors(folder / _WEIGHTS)
    return SavedDraft(description=description, parameters=parameters, vocabulary=vocabulary)
