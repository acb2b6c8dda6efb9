"""Why a stored sample is not taken: one sentence of what was found, expected and to do."""

from __future__ import annotations

from eagle3data.schema.errors import SampleError

MISSING = "source_missing"
DAMAGED = "source_damaged"
UNSAFE = "source_unsafe"
DUPLICATE = "source_duplicate"
WITHOUT_ROW = "source_without_row"
LAYOUT = "source_layout"
MIXED = "source_mixed"
LENGTH = "length_mismatch"
TOKENS_DIFFER = "tokens_differ"
TOKENS_INVALID = "tokens_invalid"
MASK_INVALID = "mask_invalid"


def refusal(kind: str, place: str, found: str, expected: str, advice: str) -> SampleError:
    """The error for a sample at `place`, worded alike for all layouts."""
    return SampleError(kind, place, f"{found}; expected {expected}. {advice}")


def missing(place: str, expected: str) -> SampleError:
    """A sample that should be there and is not."""
    return refusal(
        MISSING, place, "there is no such file", expected, "Extract it again, or leave it out."
    )


def damaged(place: str, found: str, expected: str) -> SampleError:
    """Bytes that are not a whole file of the layout."""
    return refusal(
        DAMAGED,
        place,
        found,
        expected,
        "Copy it again from its maker, or extract it again.",
    )


def wide(place: str, found: int, hidden_size: int) -> SampleError:
    """A final state of several times the hidden size."""
    return refusal(
        LAYOUT,
        place,
        f"a final state {found} wide",
        f"{hidden_size}, the target's hidden size",
        "Is it the right --model? Else extract it again.",
    )
