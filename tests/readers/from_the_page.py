"""The order, the packing and the ranks' steps as `docs/loader.md` says, in plain Python.

Written from the page alone, with nothing of the package, slow and simple: what the loader is
compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import NamedTuple

_ALL = 2**64 - 1


class Document(NamedTuple):
    """A sample or a piece of one, and the shard it lies in."""

    number: int
    data_set: int
    row: int
    first: int
    length: int
    shard: int


class Selected(NamedTuple):
    """A selected sample."""

    row: int
    length: int
    shard: int


def mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _ALL
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _ALL
    return value ^ (value >> 31)


def permutation(count: int, seed: int, epoch: int) -> list[int]:
    base = mix((mix(seed & _ALL) + epoch) & _ALL)
    return sorted(range(count), key=lambda i: mix((base + i) & _ALL))


def derived(seed: int, number: int) -> int:
    return mix((mix(seed & _ALL) + 2**63 + number) & _ALL)


def documents_of(sets: Sequence[Sequence[Selected]], budget: int) -> list[Document]:
    found: list[Document] = []
    for number, samples in enumerate(sets):
        for row, length, shard in samples:
            for first in range(0, length, budget):
                piece = min(budget, length - first)
                found.append(Document(len(found), number, row, first, piece, shard))
    return found


@dataclass
class Page:
    """A stream as the page defines it."""

    sets: Sequence[Sequence[Selected]]
    budget: int
    seed: int = 0
    shuffle: str = "global"
    weights: Sequence[float] | None = None

    def packs(self, epoch: int) -> list[list[Document]]:
        documents = documents_of(self.sets, self.budget)
        coming = [(document, 0) for document in documents]
        if self.weights is not None:
            coming = self._dealt(documents, epoch)
        return pack(arranged(coming, self.shuffle, self.seed, epoch), self.budget)

    def _dealt(self, documents: list[Document], epoch: int) -> list[tuple[Document, int]]:
        assert self.weights is not None
        weights = [Fraction(weight) for weight in self.weights]
        everything = sum(document.length for document in documents)
        coming = []
        for number in range(len(self.sets)):
            held = [document for document in documents if document.data_set == number]
            share = weights[number] / sum(weights) * everything
            mean = Fraction(sum(document.length for document in held), len(held))
            drawn = max(1, floor(share / mean + Fraction(1, 2)))
            rounds: dict[int, list[int]] = {}
            for draw in range(epoch * drawn, (epoch + 1) * drawn):
                round_, place = divmod(draw, len(held))
                if round_ not in rounds:
                    seed = derived(self.seed, 1 + number)
                    rounds[round_] = permutation(len(held), seed, round_)
                coming.append((held[rounds[round_][place]], round_))
        return coming

    def rank(self, epoch: int, rank: int, ranks: int, start: int = 0) -> list[list[Document]]:
        """What one rank gets from a pack on, step by step."""
        packs = self.packs(epoch)
        steps = []
        while start < len(packs):
            steps.append(step_of(packs[start : start + ranks], ranks, self.budget)[rank])
            start += ranks
        return steps


def growing_packs(
    rounds: Sequence[Sequence[Selected]], budget: int, seed: int, shuffle: str = "global"
) -> list[list[Document]]:
    """Epoch 0 of a set that was followed, once it is finished."""
    order: list[Document] = []
    for number, samples in enumerate(rounds):
        documents = documents_of([samples], budget)
        later = [document._replace(number=document.number + len(order)) for document in documents]
        coming = [(document, 0) for document in later]
        order += arranged(coming, shuffle, derived(seed, 2**32 + number), 0)
    return pack(order, budget)


def arranged(
    coming: Sequence[tuple[Document, int]], shuffle: str, seed: int, epoch: int
) -> list[Document]:
    if shuffle == "none":
        return [document for document, _ in coming]
    order = permutation(len(coming), seed, epoch)
    if shuffle == "shard":
        shard_of = [(document.data_set, round_, document.shard) for document, round_ in coming]
        shards = sorted(set(shard_of))
        shuffled = permutation(len(shards), derived(seed, 0), epoch)
        window = {shards[shard]: place // 16 for place, shard in enumerate(shuffled)}
        order.sort(key=lambda i: window[shard_of[i]])
    return [coming[i][0] for i in order]


def pack(order: Sequence[Document], budget: int) -> list[list[Document]]:
    """The packs of documents that come in this order."""
    done: list[list[tuple[int, Document]]] = []
    window: list[tuple[int, Document]] = []
    for entry in enumerate(order):
        window.append(entry)
        if _tokens(window) < 32 * budget:
            continue
        made = _fit(window, budget)
        middle = sorted(_tokens(pack) for pack in made)[len(made) // 2]
        done += sorted(_in_place(pack) for pack in made if _tokens(pack) >= middle)
        window = [entry for pack in made if _tokens(pack) < middle for entry in pack]
    done += [_in_place(pack) for pack in _fit(window, budget)]
    return [[document for _, document in pack] for pack in done]


def _fit(window: list[tuple[int, Document]], budget: int) -> list[list[tuple[int, Document]]]:
    packs: list[list[tuple[int, Document]]] = []
    for entry in sorted(window, key=lambda one: (-one[1].length, one[0])):
        for made in packs:
            if _tokens(made) + entry[1].length <= budget:
                made.append(entry)
                break
        else:
            packs.append([entry])
    return packs


def _tokens(entries: Sequence[tuple[int, Document]]) -> int:
    return sum(document.length for _, document in entries)


def _in_place(entries: list[tuple[int, Document]]) -> list[tuple[int, Document]]:
    return sorted(entries, key=lambda entry: entry[0])


def step_of(packs: list[list[Document]], ranks: int, budget: int) -> list[list[Document]]:
    """What each rank gets of a step's packs."""
    if len(packs) == ranks:
        return packs
    left = [document for members in packs for document in members]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for place in sorted(range(len(left)), key=lambda place: (-left[place].length, place)):
        rank = min(range(ranks), key=lambda one: held[one])
        shares[rank].append(place)
        held[rank] += left[place].length
    if max(held) > budget:
        return packs + [[] for _ in range(ranks - len(packs))]
    return [[left[place] for place in sorted(share)] for share in shares]
