"""Every kind that a check reports has a sentence for people, and no sentence is left over."""

from __future__ import annotations

import re
from pathlib import Path

import eagle3data
from eagle3data.validation.kinds import MEANING

PACKAGE = Path(eagle3data.__file__).parent
ACTIONS = {"repair.py", "repair_actions.py", "condemned.py", "damaged_index.py", "leftovers.py"}
"""Their kinds are of what `repair` does."""
OF_READING = {"storage", "readers"}


def reported() -> set[str]:
    """Kinds that stand in the code: of findings, and of errors in stored bytes."""
    found: set[str] = set()
    for file in (PACKAGE / "validation").glob("*.py"):
        if file.name not in ACTIONS:
            found |= set(re.findall(r'kind="([a-z_]+)"', file.read_text()))
    for room in OF_READING:
        for file in (PACKAGE / room).glob("*.py"):
            raised = r'(?:CorruptionError|_corrupt)\(\s*"([a-z_]+)"'
            found |= set(re.findall(raised, file.read_text()))
    return found - {"stable"}  # numpy's sort


def test_every_kind_has_a_meaning() -> None:
    assert reported() - MEANING.keys() == set()


def test_the_public_kinds_are_among_them() -> None:
    public = (
        "length_mismatch nonfinite all_zero shifted swapped_samples chunk_corrupt object_truncated "
        "object_missing wrong_final_layer wrong_norm_state layers_swapped saturated index_overlap "
        "index_hole duplicate_sample tokens_differ wrong_tokenizer wrong_model mask_shifted "
        "mask_empty"
    )
    assert set(public.split()) <= MEANING.keys()
    assert all(sentence.endswith(".") for sentence in MEANING.values())
