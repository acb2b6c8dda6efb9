"""What a loader's state is: a position, and the stream that it is a position of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.schema.digest import bytes_digest, json_digest
from eagle3data.schema.errors import MismatchError

_VERSION = 2
_FIELDS = ("epoch", "consumed", "parts", "parts_digest", "fingerprint")

Fingerprint = dict[str, str | int]


def rows_digest(selections: Sequence[npt.NDArray[np.int64]]) -> str:
    """Digest of the rows that were selected, set by set; the sets' generations say of what."""
    return json_digest([bytes_digest(rows.astype("<i8").tobytes()) for rows in selections])


def written_state(
    fingerprint: Fingerprint, *, epoch: int, consumed: int, parts: str, parts_digest: str
) -> dict[str, Any]:
    """A state of nothing but numbers and texts, under the same keys for every stream."""
    return {
        "version": _VERSION,
        "epoch": epoch,
        "consumed": consumed,
        "parts": parts,
        "parts_digest": parts_digest,
        "fingerprint": dict(fingerprint),
        "digest": json_digest(fingerprint),
    }


def require_same_stream(state: Mapping[str, Any], here: Fingerprint) -> None:
    """Refuse a state of another stream.

    Raises:
        MismatchError: says what differs.
    """
    if state.get("version") != _VERSION:
        raise MismatchError(
            f"a loader state of version {state.get('version')}; expected {_VERSION}."
        )
    lacking = [name for name in _FIELDS if name not in state]
    if lacking:
        raise MismatchError(
            f"the loader's state lacks {', '.join(lacking)}: it is not a whole one."
        )
    there = state["fingerprint"]
    differing = [
        f"{key} was {there.get(key)}, here it is {here[key]}"
        for key in here
        if here[key] != there.get(key)
    ]
    if differing:
        raise MismatchError(
            f"the loader's state belongs to another stream: {'; '.join(differing)}. Restore it "
            "with the same data set and settings, or start without it."
        )
