"""Export a draft the way an inference engine loads it (`trainer.layouts` knows the layouts)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eagle3data.schema.errors import InputError
from eagle3data.trainer.files import new_folder, write_json
from eagle3data.trainer.layouts import ExportFormat, engine_config, published_name
from eagle3data.trainer.saved import SavedDraft, draft_tensors

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
EMBEDDINGS = "embed_tokens.weight"


def export_draft(
    draft: SavedDraft, out: Path, form: ExportFormat, *, embeddings: Tensor | None = None
) -> None:
    """Write a draft for an engine: `config.json` and one `model.safetensors` of bfloat16.

    Args:
        draft: the draft, in any float dtype.
        out: a folder that doesn't exist yet or is empty.
        form: whose.
        embeddings: `[V, H]`, the target's. The layout of speculators holds them; the others
            don't, since engines share the target's own.

    Raises:
        InputError: `out` is taken, the engine has no such variant, or embeddings are missing.
        LayerError: the engine has no id for one of the aux layers.
    """
    import torch
    from safetensors.torch import save

    config = engine_config(draft.description, form)
    tensors = {published_name(name, form): tensor for name, tensor in draft_tensors(draft).items()}
    if form is ExportFormat.SPECULATORS:
        shape = draft.description.config
        if embeddings is None or embeddings.shape != (shape.vocab_size, shape.hidden_size):
            found = "none were given" if embeddings is None else f"got {list(embeddings.shape)}"
            raise InputError(
                f"the layout of speculators holds the target's embeddings, [{shape.vocab_size}, "
                f"{shape.hidden_size}]; {found}. Name the target with --model."
            )
        tensors[EMBEDDINGS] = embeddings
    stored = {
        name: tensor.to(torch.bfloat16).contiguous() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    with new_folder(out) as folder:
        write_json(folder / CONFIG, config)
        (folder / WEIGHTS).write_bytes(save(stored, metadata={"format": "pt"}))
