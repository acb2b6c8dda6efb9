"""Whose states are these: the sample whose tokens a row of predictions fits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eagle3data.validation.significance import is_above

MIN_MATCHES = 6


def find_owner(
    predicted: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    texts: Sequence[npt.NDArray[np.int32]],
    own: int,
    log_alpha: float,
) -> int | None:
    """Find the text, other than `own`, whose tokens at `places` are the predicted ones.

    Args:
        predicted: `[P]` token ids, -1 where there is no prediction.
        places: `[P]` positions within the text that they are predictions for.
        texts: candidates, by number.
        own: number of the text that they should have fitted.
        log_alpha: threshold; the rate to beat is thrice that of the average candidate.

    Returns:
        The best candidate's number, or None where none fits clearly.
    """
    known = predicted >= 0
    predicted, places = predicted[known], places[known]
    matches, tested = np.zeros(len(texts), int), np.zeros(len(texts), int)
    for number, text in enumerate(texts):
        inside = places < len(text)
        tested[number] = inside.sum()
        matches[number] = (text[places[inside]] == predicted[inside]).sum()
    matches[own] = 0
    best = int(matches.argmax())
    if matches[best] < MIN_MATCHES:
        return None
    others = np.delete(np.arange(len(texts)), [best, own] if best != own else [own])
    rate = matches[others].sum() / max(int(tested[others].sum()), 1)
    rate = min(max(3 * float(rate), 0.05), 0.5)
    fits = is_above(int(matches[best]), int(tested[best]), rate, log_alpha)
    return best if fits else None
