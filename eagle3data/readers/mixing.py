"""How often documents of several data sets come in an epoch: dealt like cards, round by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from eagle3data.readers.order import DEAL_SEEDS, derived_seed, epoch_order
from eagle3data.schema.errors import InputError


def require_weights(weights: Sequence[float], sets: int) -> list[float]:
    """One weight a data set, each above 0.

    Raises:
        InputError: another number of them, or one that is none.
    """
    listed = [float(weight) for weight in weights]
    if len(listed) != sets or not all(math.isfinite(w) and w > 0 for w in listed):
        raise InputError(
            f"weights are {list(weights)} for {sets} data sets; expected one number above 0 for "
            "each. Leave a set out to give it no weight."
        )
    return listed


def draws(weights: Sequence[float], documents: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """How many documents of each set an epoch takes.

    An epoch has as many tokens as all sets together, shared out by the weights; a set gives as
    many documents of its mean length as its share is, rounded half up, at least one.

    Args:
        weights: one a set; only their ratios matter.
        documents: of each set.
        tokens: of each set.
    """
    exact = [Fraction(weight) for weight in weights]
    share = Fraction(sum(tokens)) / sum(exact)
    return [
        max(1, math.floor(share * weight * count / held + Fraction(1, 2)))
        for weight, count, held in zip(exact, documents, tokens, strict=True)
    ]


def dealt(
    documents: int, drawn: int, *, number: int, seed: int, epoch: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which of a set's documents an epoch takes.

    The set is dealt round by round, each round a permutation of all of it, and epoch `e` takes the
    draws `e*drawn` to `(e+1)*drawn - 1`: none comes again before all others have come.

    Args:
        documents: of the set.
        drawn: of them, an epoch.
        number: of the set.
        seed: of the order.
        epoch: its number.

    Returns:
        `[drawn]` int64 documents from 0, and the round that each is of.
    """
    of_set = derived_seed(seed, DEAL_SEEDS + number)
    start, stop = epoch * drawn, (epoch + 1) * drawn
    rounds = range(start // documents, -(-stop // documents))
    cards = np.concatenate([epoch_order(documents, of_set, one) for one in rounds])
    which = slice(start - rounds.start * documents, stop - rounds.start * documents)
    return cards[which], np.repeat(np.array(rounds), documents)[which]
