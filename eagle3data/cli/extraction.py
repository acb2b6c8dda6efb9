"""How the progress of an extraction, or of an import, is shown."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from eagle3data.cli.console import progress, tell


class ShownExtraction:
    """Opens the progress display once the work's size is known; what `extract` tells goes there."""

    def __init__(self, description: str) -> None:
        """Show nothing yet; `description` stands before the numbers."""
        self._description = description
        self._stack = ExitStack()
        self._told: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, tokens: int, shards: int) -> None:
        """The work's size."""
        if shards:
            self._progress = self._stack.enter_context(
                progress(self._description, tokens, "tokens")
            )

    def advance(self, tokens: int, shard: int) -> None:
        """A sample is done."""
        self._progress.advance(tokens, shard=str(shard))

    def notice(self, text: str) -> None:
        """Something deserves a look."""
        tell(text)

    def wait(self, shards: list[int]) -> None:
        """Others have what is left."""
        if shards != self._told:
            self._told = shards
            some = ", ".join(map(str, shards[:5])) + (", ..." if len(shards) > 5 else "")
            tell(f"{len(shards)} shards left, all in other workers' hands ({some}): waiting.")


def how_to_continue(url: str) -> str:
    """What to say when an extraction or an import is interrupted."""
    from eagle3data.storage.layout import committed_shards
    from eagle3data.storage.root import Root

    done = len(committed_shards(Root(url)))
    return (
        f"\nstopped: {done} shards of {url} are committed, the one in hand was dropped. "
        "Run the same command again to continue."
    )
