"""Which layouts a path shows signs of: names of files, and keys where names are shared."""

from __future__ import annotations

from pathlib import Path

from eagle3data.interop.deepspec import INDEX, MANIFEST
from eagle3data.interop.modelopt import NEEDED, may_be_dump
from eagle3data.interop.source_files import files_below, root_of
from eagle3data.interop.specforge import GROUP, is_feature_file
from eagle3data.interop.speculators import NAME as SPECULATORS_NAME
from eagle3data.interop.speculators import states_folder
from eagle3data.interop.torch_file import tensors
from eagle3data.interop.torchspec import is_cache
from eagle3data.schema.errors import InputError, SampleError

_TRIED = 16
"""Files that are opened to see what they hold before a folder is given up."""


def formats_at(path: Path) -> dict[str, str]:
    """Format to the file that speaks for it.

    Raises:
        InputError: there is nothing at `path`.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist. Name the folder with the other project's files.")
    found: dict[str, str] = {}
    if path.is_dir():
        found |= _speculators(path)
    if (path / INDEX).is_file() and (path / MANIFEST).is_file():
        found["deepspec"] = INDEX
    return found | _of_torch_files(path)


def _speculators(path: Path) -> dict[str, str]:
    names = (entry.name for entry in states_folder(path).iterdir())
    name = next(filter(SPECULATORS_NAME.fullmatch, names), None)
    return {} if name is None else {"speculators": name}


def _of_torch_files(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    features, dumps = [], []
    for place in files_below(path, lambda name: name.endswith((".ckpt", ".ckpt.gz", ".pt"))):
        name = Path(place).name
        if is_cache(name):
            found.setdefault("torchspec", place)
        elif may_be_dump(name):
            dumps.append(place)
        elif is_feature_file(name) and GROUP.fullmatch(Path(place).parent.name):
            found.setdefault("specforge", place)
        elif is_feature_file(name):
            features.append(place)
    root = root_of(path)
    return found | _features(root, features) | _dumps(root, dumps)


def _features(root: Path, places: list[str]) -> dict[str, str]:
    """SpecForge's files and one-layer dumps share names."""
    for place in places[:_TRIED]:
        try:
            keys = tensors(root / place, place, ("input_ids",))
        except SampleError:
            continue  # the next one may be whole
        if keys.get("aux_hidden_state") is not None:
            return {"specforge": place}
        if keys.get("hidden_state") is not None:
            return {"eagle": place}
    return {}


def _dumps(root: Path, places: list[str]) -> dict[str, str]:
    """A `.pt` can be anything."""
    for place in places[:_TRIED]:
        try:
            tensors(root / place, place, NEEDED)
        except SampleError:
            continue  # the next one may be whole
        return {"model-optimizer": place}
    return {}
