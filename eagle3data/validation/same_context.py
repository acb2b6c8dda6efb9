"""Equal contexts have equal states: samples that begin with the same tokens, compared there.

A causal model's state depends on the tokens up to its own and on nothing else, so samples that
share their first tokens (a chat template, a system prompt, a first word) hold the same states
there, up to the engine's rounding. Whatever was done to one of them (scaled, clipped, noise,
dimensions of another row, bits misread) shows without any model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagle3data.validation.row_facts import Floats
from eagle3data.validation.token_identity import Sequences

SMALLEST_GROUP = 4
MAX_ROWS = 8
_MAX_PREFIX = 256
_CANDIDATES = 33
ROUNDING = 2.0**-4
"""Relative difference that an engine's rounding does not reach: eight bits, over many layers."""
_TIMES_USUAL = 8.0


@dataclass(frozen=True, kw_only=True)
class Group:
    """Samples that begin with the same tokens.

    Attributes:
        samples: numbers of the probed samples.
        tokens: how many they share at least.
        places: positions of the rows that are compared.
    """

    samples: list[int]
    tokens: int
    places: list[int]


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """A sample whose states differ from those of the same context in others.

    Attributes:
        sample: its number among the probed ones.
        difference: of its rows from the others', relative to their size (median over rows).
        usual: the group's median of the same.
        group: whom it was compared with.
    """

    sample: int
    difference: float
    usual: float
    group: Group


def groups(sequences: Sequences) -> list[Group]:
    """Every sample in at most one group: that of the longest beginning that enough share."""
    texts = [tuple(sequences.ids[sequences.rows(at)].tolist()) for at in range(len(sequences))]
    return _split(texts, list(range(len(texts))), 1)


def _split(texts: Sequence[tuple[int, ...]], samples: list[int], tokens: int) -> list[Group]:
    alike: dict[tuple[int, ...], list[int]] = {}
    rest = []
    for sample in samples:
        if len(texts[sample]) < tokens:
            rest.append(sample)
        else:
            alike.setdefault(texts[sample][:tokens], []).append(sample)
    found = []
    for members in alike.values():
        if len(members) < SMALLEST_GROUP:
            rest += members
        elif tokens < _MAX_PREFIX:
            found += _split(texts, members, 2 * tokens)
        else:
            found.append(_group(members, tokens))
    if tokens > 1 and len(rest) >= SMALLEST_GROUP:
        found.append(_group(rest, tokens // 2))
    return found


def _group(samples: list[int], tokens: int) -> Group:
    places = sorted({round(at) for at in np.linspace(0, tokens - 1, min(MAX_ROWS, tokens))})
    return Group(samples=samples, tokens=tokens, places=places)


def wanted_rows(found: Sequence[Group]) -> dict[int, Sequence[int]]:
    """By sample, places of the rows that a comparison needs."""
    return {sample: group.places for group in found for sample in group.samples}


def contradictions(group: Group, kept: dict[int, Floats]) -> list[Contradiction]:
    """The samples of a group that hold other states than most of it at one layer.

    Args:
        group: of samples.
        kept: by sample, `[len(places), H]` float32; samples with zero or not finite rows are
            left out.
    """
    samples = [at for at in group.samples if _is_usable(kept[at])]
    if len(samples) < SMALLEST_GROUP:
        return []
    distance = _from_most_central([kept[at] for at in samples])
    usual = float(np.median(distance))
    limit = max(ROUNDING, _TIMES_USUAL * usual)
    return [
        Contradiction(sample=samples[at], difference=float(distance[at]), usual=usual, group=group)
        for at in np.flatnonzero(distance > limit)
    ]


def _is_usable(rows: Floats) -> bool:
    return bool(np.isfinite(rows).all() and (_most(rows) > 0).all())


def _from_most_central(rows: Sequence[Floats]) -> npt.NDArray[np.float64]:
    """Each sample's distance from the one that is nearest to all of them."""
    best = _distances(rows, rows[0])
    for reference in rows[:: max(1, len(rows) // _CANDIDATES)]:
        if np.median(best) < ROUNDING / _TIMES_USUAL:
            break
        best = min(best, _distances(rows, reference), key=np.median)
    return best


def _distances(rows: Sequence[Floats], reference: Floats) -> npt.NDArray[np.float64]:
    """Of each sample from one of them, in the dimension that nine in ten differ less in.

    A few massive dimensions round by more than all the others hold; they must not decide.
    """
    size = _most(reference)
    return np.array([np.median(_most(one - reference) / size) for one in rows])


def _most(rows: Floats) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.quantile(np.abs(rows), 0.9, axis=1)
    return found
