"""All tensors of a published model: safetensors, or a pickle of tensors alone; one file or many."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3data.schema.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
PATTERNS = {
    SAFETENSORS: ["model*.safetensors", f"{SAFETENSORS}.index.json"],
    PICKLE: ["pytorch_model*.bin", f"{PICKLE}.index.json"],
}
"""File names to fetch, by which of the two kinds a model is published in; the first is better."""


def has_weights(folder: Path, kind: str) -> bool:
    """Whether a folder holds tensors of a kind, `SAFETENSORS` or `PICKLE`."""
    return (folder / kind).is_file() or (folder / f"{kind}.index.json").is_file()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read every tensor, on the CPU, in the dtype it is stored in.

    Pickles are read with `weights_only`: they hold tensors or are refused, and run nothing.

    Raises:
        InputError: no weights, a file that is missing or can't be read, a name that is there twice.
    """
    for kind in (SAFETENSORS, PICKLE):
        if has_weights(folder, kind):
            tensors: dict[str, Tensor] = {}
            for path in _files(folder, kind):
                found = _read(path)
                twice = sorted(tensors.keys() & found.keys())
                if twice:
                    raise InputError(f"{path} holds {', '.join(twice)} a second time.")
                tensors.update(found)
            return tensors
    raise InputError(
        f"{folder} has no weights: expected {SAFETENSORS} or {PICKLE}, or the index of either."
    )


def _files(folder: Path, kind: str) -> list[Path]:
    index = folder / f"{kind}.index.json"
    if not index.is_file():
        return [folder / kind]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index} has no readable weight_map: {error!r}") from None
    outside = [name for name in names if name != Path(str(name)).name]
    if outside:
        raise InputError(f"{index} names files outside its folder: {', '.join(map(str, outside))}.")
    return [folder / name for name in names]


def _read(path: Path) -> dict[str, Tensor]:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            loaded: dict[str, Tensor] = load_file(path)
            return loaded
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} can't be read as tensors: {reason}") from None
    if not isinstance(loaded, dict) or not all(map(torch.is_tensor, loaded.values())):
        raise InputError(f"{path} holds something else than named tensors.")
    return loaded
