"""The shards of a job that any number of processes work through together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from eagle3data.storage import layout
from eagle3data.storage.claims import Claim, Claims, shard_name
from eagle3data.storage.root import Root

_POLL_SECONDS = 2.0

OnWait = Callable[[list[int]], None]


class SharedShards:
    """Hands out shards until every one that is wanted is committed, by whomever."""

    def __init__(self, root: Root, claims: Claims, wanted: Sequence[int], on_wait: OnWait) -> None:
        """Take no shard yet.

        Args:
            root: of the data set that is written.
            claims: of this process.
            wanted: shards to be committed.
            on_wait: called every few seconds with the shards that other processes still have,
                when nothing else is left to do.
        """
        self._root, self._claims, self._wanted = root, claims, wanted
        self._on_wait = on_wait
        self._in_hand: set[int] = set()

    def take(self) -> Iterator[Claim | None]:
        """Claims on shards that are to be done; give each back with `give_back`.

        A shard may be committed after the next one was taken. None says that all others are in
        other processes' hands: finish what was begun; the next step waits a while for them.
        """
        while missing := missing_shards(self._root, self._wanted):
            taken = 0
            for shard in missing:
                claim = self._acquire(shard)
                if claim is not None:
                    taken += 1
                    yield claim
            if not taken:
                yield None
                self._wait()

    def give_back(self, claim: Claim) -> None:
        """Let go of a shard; one that is not committed is handed out again."""
        self._claims.release(claim.name)
        self._in_hand.discard(int(claim.name))

    def _acquire(self, shard: int) -> Claim | None:
        if shard in self._in_hand:
            return None
        claim = self._claims.acquire(shard_name(shard))
        if claim is None:
            return None
        # It may have been committed since the list was read.
        if self._root.exists(layout.index_part(shard)):
            self._claims.release(claim.name)
            return None
        self._in_hand.add(shard)
        return claim

    def _wait(self) -> None:
        """See how the others get on, and take over from who has died."""
        left = missing_shards(self._root, self._wanted)
        if left:
            self._on_wait(left)
            time.sleep(_POLL_SECONDS)


def missing_shards(root: Root, wanted: Sequence[int]) -> list[int]:
    """Those of the wanted shards that are not committed."""
    committed = set(layout.committed_shards(root))
    return [shard for shard in wanted if shard not in committed]
