"""Which layouts a path shows signs of: names of files, and keys where names are shared."""

from __future__ import annotations

from pathlib import Path

from eagle3data.interop.source_files import files_below, root_of
from eagle3data.interop.specforge import GROUP, is_feature_file
from eagle3data.interop.speculators import NAME as SPECULATORS_NAME
from eagle3data.interop.speculators import states_folder
from eagle3data.interop.torch_file import tensors
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
    return found | _of_torch_files(path)


def _speculators(path: Path) -> dict[str, str]:
    names = (entry.name for entry in states_folder(path).iterdir())
    name = next(filter(SPECULATORS_NAME.fullmatch, names), None)
    return {} if name is None else {"speculators": name}


def _of_torch_files(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    unclear = []
    for place in files_below(path, is_feature_file):
        if GROUP.fullmatch(Path(place).parent.name):
            found.setdefault("specforge", place)
        else:
            unclear.append(place)
    if unclear:
        found |= _by_keys(root_of(path), unclear)
    return found


def _by_keys(root: Path, places: list[str]) -> dict[str, str]:
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
