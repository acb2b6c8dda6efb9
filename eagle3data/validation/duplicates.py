"""Rows that are equal to the bit although their contexts differ; layers that are one layer twice.

A state is made from all tokens up to its own, so two rows of different contexts never agree in
every value. What the tokens explain doesn't count: equal beginnings of two samples, and a token
repeated over and over, whose states may converge. At layer 0, the embeddings, every token's rows
are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eagle3data.validation.token_identity import Sequences

Words = npt.NDArray[np.uint64]

FEWEST_ROWS = 2
"""Of a sample; in a single one there may be a reason that nobody thought of."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeated:
    """Rows of one sample that other rows of other contexts are equal to.

    Attributes:
        sample: its number among the probed ones.
        rows: first and past-the-last place of such rows.
        count: how many they are.
        other: the sample that holds most of the equal rows; itself where they are its own.
        equal: `[count, 2]` each row and the one that it is equal to, among all rows.
        outvoted: most of the rows are held by more samples of another context, which agree.
        shift: how many places on lies the token of its own whose state most rows hold, if one.
    """

    sample: int
    rows: tuple[int, int]
    count: int
    other: int
    equal: npt.NDArray[np.int64]
    outvoted: bool
    shift: int | None


def context_digests(sequences: Sequences) -> Words:
    """`[R]` uint64, equal where all tokens up to and with the row's own are.

    One token over and over from the beginning is one context: attention over equal values gives
    that value, however many they are.
    """
    found = np.zeros(sequences.bounds[-1], np.uint64)
    ids = sequences.ids.numpy().astype(np.uint64)
    for sample in range(len(sequences)):
        span = sequences.rows(sample)
        value, alike = 0, True
        for at in range(span.start, span.stop):
            alike = alike and ids[at] == ids[span.start]
            if not alike or at == span.start:
                value = _mixed(value ^ (int(ids[at]) + 1))
            found[at] = value
    return found


def _mixed(value: int) -> int:
    value = (value * 0x9E3779B97F4A7C15) % 2**64
    return value ^ (value >> 31)


def repeated_rows(
    sequences: Sequences, contexts: Words, states: Words, usable: npt.NDArray[np.bool_]
) -> list[Repeated]:
    """Samples with rows whose states other rows hold too, without a reason in the tokens.

    Args:
        sequences: the tokens.
        contexts: `context_digests(sequences)`.
        states: `[R]` digests of one layer's rows.
        usable: `[R]` rows that are finite and not zero.
    """
    order = np.flatnonzero(usable)
    order = order[np.argsort(states[order], kind="stable")]
    edges = np.flatnonzero(np.diff(states[order])) + 1
    sample_of, ids = sequences.sample_of.numpy(), sequences.ids.numpy()
    found: dict[int, list[_Equal]] = {}
    for rows in np.split(order, edges):
        if len(rows) > 1 and len(np.unique(contexts[rows])) > 1:
            for equal in _unexplained(rows, contexts, sample_of, ids):
                found.setdefault(int(sample_of[equal.row]), []).append(equal)
    return [
        _gathered(sample, sorted(equal, key=lambda one: one.row), sequences, contexts)
        for sample, equal in sorted(found.items())
        if len(equal) >= FEWEST_ROWS
    ]


class _Equal(NamedTuple):
    """A row, one of another context that it is equal to, and whether most hold the latter."""

    row: int
    other: int
    outvoted: bool


def _unexplained(
    rows: npt.NDArray[np.int64],
    contexts: Words,
    sample_of: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
) -> Iterator[_Equal]:
    """Each of some rows with one state that another one of another context should not have.

    Where most of them have one context, it is the others that hold what they should not.
    """
    alike, counts = np.unique(contexts[rows], return_counts=True)
    most = int(counts.argmax())
    right = alike[most] if 2 * counts[most] > len(rows) else None
    for row in rows:
        if contexts[row] == right:
            continue
        other = contexts[rows] != contexts[row]
        # In a run of one token the states of later rows may converge to one.
        other &= (sample_of[rows] != sample_of[row]) | (ids[rows] != ids[row])
        if right is not None:
            other &= contexts[rows] == right
        if other.any():
            yield _Equal(int(row), int(rows[other][0]), right is not None)


def _gathered(
    sample: int, equal: Sequence[_Equal], sequences: Sequences, contexts: Words
) -> Repeated:
    first, stop = sequences.bounds[sample], sequences.bounds[sample + 1]
    sample_of = sequences.sample_of
    others = Counter(int(sample_of[one.other]) for one in equal)
    shifts: Counter[int] = Counter()
    for one in equal:
        own = np.flatnonzero(contexts[first:stop] == contexts[one.other])
        shifts.update((own + first - one.row).tolist())
    shift, votes = max(shifts.items(), key=itemgetter(1), default=(0, 0))
    return Repeated(
        sample=sample,
        rows=(equal[0].row - first, equal[-1].row + 1 - first),
        count=len(equal),
        other=others.most_common(1)[0][0],
        equal=np.array([(one.row, one.other) for one in equal]),
        outvoted=2 * sum(one.outvoted for one in equal) > len(equal),
        shift=shift if 2 * votes > len(equal) else None,
    )


def token_only_share(sequences: Sequences, states: Words) -> tuple[float, int]:
    """How often a token's states are all the same one: so are embeddings, and no others.

    Args:
        sequences: the tokens.
        states: `[R]` digests of one layer's rows.

    Returns:
        The share of tokens, of those that occur in several contexts of their own, all of whose
        rows are equal; and how many such tokens there are.
    """
    usable = (~sequences.shared & (sequences.place > 0)).numpy()
    ids, states = sequences.ids.numpy()[usable], states[usable]
    samples = sequences.sample_of.numpy()[usable]
    if not len(ids):
        return 0.0, 0
    order = np.argsort(ids, kind="stable")
    equal = tested = 0
    for rows in np.split(order, np.flatnonzero(np.diff(ids[order])) + 1):
        if len(np.unique(samples[rows])) > 1:
            tested += 1
            equal += len(np.unique(states[rows])) == 1
    return equal / max(tested, 1), tested
