"""A data set that is trained on while it is extracted: which of its shards a run has seen, when.

Shards are taken in rounds. What a round holds depends on when somebody looked, so it is decided
once, by rank 0, and written into the loader's state: from then on it is data, and the order is a
pure function of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.progress import Progress, Watch
from eagle3data.readers.ranks import is_distributed
from eagle3data.schema.errors import Eagle3DataError, InputError, MismatchError, StalledError
from eagle3data.storage import layout
from eagle3data.storage.committed import gathered_pieces

_LOOK_EVERY = 0.5
_LOOK_FAR_EVERY = 5.0
"""Seconds between two looks at a set that is waited for; one in an object store costs requests."""
_CLOSED = "."


@dataclass(frozen=True)
class Round:
    """What was decided.

    Attributes:
        shards: the next round's, ascending; none where the set is finished.
        generation: of the set as if only they were committed.
    """

    shards: tuple[int, ...]
    generation: str


class GrowingSet:
    """The rounds of a data set.

    Attributes:
        rounds: the shards of each round so far, ascending.
        is_closed: the set is finished, and all of it is in the rounds.
        timeout: seconds without a new shard after which the extraction counts as dead.
    """

    def __init__(self, dataset: Dataset, *, timeout: float, ranks: tuple[int, int]) -> None:
        """Look at nothing yet.

        Args:
            dataset: the set, opened at any time.
            timeout: seconds without a new shard after which the extraction counts as dead.
            ranks: this process's rank and the world size, as the loader has them.

        Raises:
            InputError: several ranks which `torch.distributed` does not know.
        """
        if timeout <= 0:
            raise InputError(f"follow_timeout is {timeout}; expected seconds above 0.")
        self._dataset = dataset
        self.timeout = timeout
        self._look_every = _LOOK_EVERY if dataset.root.is_local else _LOOK_FAR_EVERY
        self._agreed = _agreement(ranks, self._look_every)
        self._watch: Watch | None = None
        self.rounds: list[tuple[int, ...]] = []
        self.is_closed = False

    def next(self, tokens: Callable[[Dataset], int], enough: int) -> Dataset | None:
        """Wait for the next round and take it; the same on every rank.

        Args:
            tokens: how many of a set's tokens are of use.
            enough: as many make a round; the last one may have fewer.

        Returns:
            The set as if only the round's shards were committed; None where it is finished.

        Raises:
            StalledError: nothing new for too long.
            CorruptionError: a part, a plan segment or a ledger entry that can't be read.
        """
        looking = _Looking(self, tokens, enough)
        found = self._agreed(looking.look)
        if not found.shards:
            self.is_closed = True
            return None
        self._wait_until_seen(found.shards)
        part = self.part(found.shards)
        if part.generation != found.generation:
            raise MismatchError(
                f"{part.url}: the samples of shards {written_shards(found.shards)} are not those "
                "that rank 0 saw a moment ago: some were hidden or done again meanwhile. Resume "
                "this run from its last state."
            )
        self.rounds.append(found.shards)
        return part

    def _wait_until_seen(self, shards: Sequence[int]) -> None:
        """Another machine's listing may be behind that of rank 0's on a network mount."""
        root = self._dataset.root
        begun = time.monotonic()
        while not all(root.exists(layout.index_part(shard)) for shard in shards):
            if time.monotonic() - begun > self.timeout:
                raise StalledError(
                    f"{root.url}: rank 0 saw shards {written_shards(shards)} committed; they can't "
                    f"be seen here after {self.timeout:.0f} s. Is it the same place for all ranks?"
                )
            time.sleep(self._look_every)

    def look(self) -> Progress:
        """How far the extraction is."""
        if self._watch is None:
            self._watch = Watch(self._dataset.root)
        return self._watch.look()

    def new_shards(self) -> tuple[int, ...]:
        """Committed shards that no round has."""
        seen = {shard for shards in self.rounds for shard in shards}
        there = layout.committed_shards(self._dataset.root)
        return tuple(shard for shard in there if shard not in seen)

    def part(self, shards: Sequence[int]) -> Dataset:
        """The set as if only these shards were committed."""
        return self._dataset.of_shards([shards])[0]

    def is_finished(self, progress: Progress) -> bool:
        """Whether nothing more is to come.

        Who writes without a plan lets go of one shard before taking the next: there the gathered
        index is the sign, which is written when the writer is closed.
        """
        if not progress.is_complete or progress.is_planned:
            return progress.is_complete
        root = self._dataset.root
        gathered = {
            shard for piece in gathered_pieces(root) for shard in piece.parts.shards.tolist()
        }
        return gathered == set(layout.committed_shards(root))

    def stalled(self, progress: Progress) -> StalledError:
        """The error that says what is waited for."""
        planned = f" of {progress.planned.shards} planned" if progress.is_planned else ""
        claims = ", ".join(
            f"{claim.state.name} ({claim.standing.value})" for claim in progress.claims
        )
        return StalledError(
            f"{self._dataset.url}: nothing new was committed for {self.timeout:.0f} s; "
            f"{progress.committed.shards}{planned} shards are there, and the claims on others are "
            f"{claims or 'none: nobody works on it'}. Run the extraction again, which continues "
            "it, and resume this run from its last state; or raise follow_timeout."
        )

    def restore(self, text: str) -> list[Dataset]:
        """Take the rounds of a state instead of these.

        Args:
            text: what `written` gave.

        Returns:
            The set of each round.

        Raises:
            MismatchError: no such text.
            CorruptionError: a part that is gone or can't be read.
        """
        try:
            rounds = [read_shards(each) for each in text.rstrip(_CLOSED).split(";") if each]
        except ValueError:
            raise MismatchError(
                f"the loader's state names the parts {text!r}; expected such as '0-3 5;4 6-9'."
            ) from None
        parts = self._dataset.of_shards(rounds)
        self.rounds, self.is_closed = rounds, text.endswith(_CLOSED)
        return parts

    def written(self) -> str:
        """The rounds, such as `0-3 5;4 6-9.`; a full stop ends those of a finished set."""
        text = ";".join(written_shards(shards) for shards in self.rounds)
        return text + _CLOSED if self.is_closed else text


class _Looking:
    """Rank 0 waiting for one round."""

    def __init__(self, growing: GrowingSet, tokens: Callable[[Dataset], int], enough: int) -> None:
        self._growing, self._tokens, self._enough = growing, tokens, enough
        self._held = Round((), "")
        self._held_tokens = 0
        self._since = time.monotonic()

    def look(self) -> Round | None:
        """What is decided; None where it is to be waited for.

        Raises:
            StalledError: it was waited for too long.
        """
        growing = self._growing
        # Before the listing: whatever was committed when all was finished is in it.
        progress = growing.look()
        is_finished = growing.is_finished(progress)
        new = growing.new_shards()
        if new != self._held.shards:
            self._since = time.monotonic()
            part = growing.part(new)
            self._held, self._held_tokens = Round(new, part.generation), self._tokens(part)
        if is_finished or self._held_tokens >= self._enough:
            return self._held
        if time.monotonic() - self._since > growing.timeout:
            raise growing.stalled(progress)
        return None


def written_shards(shards: Sequence[int]) -> str:
    """Ascending numbers as `0-3 5`."""
    runs = groupby(enumerate(shards), key=lambda item: item[1] - item[0])
    spans = [[shard for _, shard in run] for _, run in runs]
    return " ".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)


def read_shards(text: str) -> tuple[int, ...]:
    """The numbers that `written_shards` wrote.

    Raises:
        ValueError: something else.
    """
    spans = [tuple(map(int, span.split("-"))) for span in text.split()]
    return tuple(shard for span in spans for shard in range(span[0], span[-1] + 1))


def _agreement(
    ranks: tuple[int, int], look_every: float
) -> Callable[[Callable[[], Round | None]], Round]:
    if ranks[1] == 1:
        return _Alone(look_every)
    if not is_distributed() or torch.distributed.get_world_size() != ranks[1]:
        raise InputError(
            f"follow=True with {ranks[1]} ranks needs torch.distributed with as many: rank 0 tells "
            "the others which shards come next. Call init_process_group first, and leave rank and "
            "world_size out."
        )
    # A group of its own: what the loader says never comes between the training's messages.
    return _Together(torch.distributed.new_group(backend="gloo"), ranks[0], look_every)


class _Alone:
    """One process looks, again and again."""

    def __init__(self, look_every: float) -> None:
        self._look_every = look_every

    def __call__(self, look: Callable[[], Round | None]) -> Round:
        while (found := look()) is None:
            time.sleep(self._look_every)
        return found


class _Together:
    """Rank 0 looks, and tells all others what it decided, or that it still waits."""

    def __init__(self, group: Any, rank: int, look_every: float) -> None:
        self._group, self._rank, self._look_every = group, rank, look_every

    def __call__(self, look: Callable[[], Round | None]) -> Round:
        while True:
            told: list[Round | Eagle3DataError | None] = [None]
            if self._rank == 0:
                told = [_or_error(look)]
            # Told at every look, so that no timeout of the group ends a long wait.
            torch.distributed.broadcast_object_list(told, src=0, group=self._group)
            (found,) = told
            if isinstance(found, Eagle3DataError):
                raise found
            if found is not None:
                return found
            if self._rank == 0:
                time.sleep(self._look_every)


def _or_error(look: Callable[[], Round | None]) -> Round | Eagle3DataError | None:
    try:
        return look()
    except Eagle3DataError as error:
        return error
