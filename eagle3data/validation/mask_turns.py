"""The turns of one sample, found in its token ids, and how its loss mask lies on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagle3data.validation.mask_roles import Roles

ASSISTANT = "assistant"
ANOTHER = "another role"
CLIPPED = "clipped"
REACH = 8
"""Tokens by which a mask is taken to be moved; further off it is on other tokens altogether."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn.

    Attributes:
        role: whose.
        start: its header's first token.
        contents: places at which its content may be said to begin: more than one where templates
            supply part of an answer, such as an empty block of reasoning.
        end: the token that ends it; None where it was cut off, or nothing ends it.
        stop: past its last token, where the next turn begins.
    """

    role: str
    start: int
    contents: tuple[int, ...]
    end: int | None
    stop: int

    @property
    def starts(self) -> set[int]:
        """Where a mask of this turn may begin."""
        return {self.start, *self.contents}

    @property
    def ends(self) -> dict[str, int]:
        """Where it may end, by what it takes in."""
        if self.end is None:
            return {"cut": self.stop}
        return {"without its end": self.end, "with its end": self.end + 1, "all": self.stop}


def find_turns(ids: npt.NDArray[np.int32], roles: Roles) -> list[Turn]:
    """The turns that token ids hold.

    Args:
        ids: `[T]`.
        roles: the template's.
    """
    places = np.flatnonzero(np.isin(ids, list(roles.openers))).tolist()
    tokens = ids.tolist()
    stops = [*places, len(tokens)][1:]
    turns: list[Turn] = []
    for start, stop in zip(places, stops, strict=True):
        headers = roles.at(tokens, start)
        role = headers[0].role if headers else ANOTHER
        same = [header for header in headers if header.role == role]
        whole = {
            start + len(header.whole)
            for header in same
            if tuple(tokens[start : start + len(header.whole)]) == header.whole
        }
        contents = whole or {start + len(header.core) for header in same} or {start + 1}
        first = min(contents)
        end = next((at for at in range(first, stop) if tokens[at] in roles.ends), None)
        turns.append(
            Turn(role=role, start=start, contents=tuple(sorted(contents)), end=end, stop=stop)
        )
    return turns


@dataclass(frozen=True, kw_only=True)
class MaskRun:
    """Adjacent masked tokens, and how they lie on the assistant's turns.

    Attributes:
        first, last: first and past-the-last token.
        taken: what the end takes in, where the run covers a turn from its beginning to its end;
            else None.
        shifts: by how many tokens the run would have to be moved back to do so, to what its end
            would take in; `CLIPPED` where the end of the sample hides it.
        starts: whether it begins where a turn does.
    """

    first: int
    last: int
    taken: str | None
    shifts: dict[int, set[str]]
    starts: bool


@dataclass(frozen=True, kw_only=True)
class MaskOnTurns:
    """A sample's mask on its turns.

    Attributes:
        runs: of masked tokens.
        length: T.
        others: `(role, first, last)`: masked tokens of other roles' content.
    """

    runs: list[MaskRun]
    length: int
    others: list[tuple[str, int, int]]

    def shifts(self, usual: frozenset[str]) -> dict[int, bool]:
        """Shifts that explain all runs alike, to whether a run shows it with both its ends.

        Args:
            usual: what the ends of the set's masks take in.
        """
        found: set[int] | None = None
        sure: set[int] = set()
        for run in self.runs:
            if run.taken in usual:
                return {}
            fits = {k for k, ends in run.shifts.items() if ends & (usual | {CLIPPED})}
            sure |= {k for k in fits if run.shifts[k] & usual}
            if run.first == 0 or run.last == self.length:
                # What was moved over an edge, or came round it.
                fits |= {k for k in range(-REACH, REACH + 1) if abs(k) >= run.last - run.first}
            found = fits if found is None else found & fits
        return {k: k in sure for k in found or ()}


def lay(mask: npt.NDArray[np.bool_], turns: Sequence[Turn]) -> MaskOnTurns:
    """Lay a mask `[T]` on the turns of its sample."""
    answers = [turn for turn in turns if turn.role == ASSISTANT]
    others = []
    for turn in turns:
        first, last = turn.contents[0], turn.stop if turn.end is None else turn.end
        at = np.flatnonzero(mask[first:last])
        if turn.role != ASSISTANT and len(at):
            others.append((turn.role, first + int(at[0]), first + int(at[-1]) + 1))
    return MaskOnTurns(
        runs=[_run(first, last, answers, len(mask)) for first, last in _runs(mask)],
        length=len(mask),
        others=others,
    )


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    padded = np.zeros(len(mask) + 2, dtype=bool)
    padded[1:-1] = mask
    edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _run(first: int, last: int, answers: Sequence[Turn], length: int) -> MaskRun:
    taken: str | None = None
    shifts: dict[int, set[str]] = {}
    for answer in answers:
        for start in answer.starts:
            shift = first - start
            if abs(shift) > REACH:
                continue
            ends = {words for words, end in answer.ends.items() if end + shift == last <= length}
            if last == length and any(end + shift > length for end in answer.ends.values()):
                ends.add(CLIPPED)
            if ends and shift:
                shifts.setdefault(shift, set()).update(ends)
            elif ends:
                taken = taken or min(ends)
    return MaskRun(
        first=first,
        last=last,
        taken=taken,
        shifts=shifts,
        starts=any(first in answer.starts for answer in answers),
    )
