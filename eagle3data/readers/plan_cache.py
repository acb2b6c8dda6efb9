"""Pack plans in the user's cache, by what they are a function of: planning a million rows takes
seconds, and every restart and every rank of a node would do it again."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from eagle3data.schema.digest import crc32c, json_digest

WORTH_DOCUMENTS = 10_000
"""Fewer are planned in less than a tenth of a second."""
_KEPT_PLANS = 32


class PlanCache:
    """Plans of one loader's epochs. A cache that can't be written or read is as good as empty."""

    def __init__(self, stream: str, documents: int) -> None:
        """Look at nothing yet.

        Args:
            stream: digest of everything that the order and the packing depend on but the epoch.
            documents: how many are planned; for few the cache is left alone.
        """
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._folder = base / "eagle3data" / "plans"
        self._stream = stream
        self._is_worth_it = documents > WORTH_DOCUMENTS

    def load(self, epoch: int) -> list[list[int]] | None:
        """The packs of an epoch; None where they are not known, or damaged."""
        if not self._is_worth_it:
            return None
        try:
            values = np.load(self._path(epoch), allow_pickle=False)
            checksum, packs = int(values[0]), int(values[1])
            ends, documents = values[2 : 2 + packs], values[2 + packs :]
        except (OSError, ValueError, IndexError):
            return None
        if checksum != crc32c(values[1:].tobytes()):
            return None
        with suppress(OSError):
            os.utime(self._path(epoch))  # the plans that were used last are kept
        bounds = [0, *ends.tolist()]
        listed = documents.tolist()
        return [listed[first:end] for first, end in itertools.pairwise(bounds)]

    def store(self, epoch: int, packs: Sequence[Sequence[int]]) -> None:
        """Keep the packs of an epoch, if that is worth it and can be done."""
        if not self._is_worth_it:
            return
        ends = np.cumsum([len(pack) for pack in packs], dtype=np.int64)
        documents = np.fromiter((one for pack in packs for one in pack), np.int64)
        body = np.concatenate([np.array([len(packs)], np.int64), ends, documents])
        values = np.concatenate([np.array([crc32c(body.tobytes())], np.int64), body])
        path = self._path(epoch)
        temporary = path.with_name(uuid.uuid4().hex)
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with temporary.open("xb") as file:
                    np.save(file, values, allow_pickle=False)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            self._forget_old()

    def _forget_old(self) -> None:
        plans = sorted(self._folder.glob("*.npy"), key=lambda path: path.stat().st_mtime)
        for path in plans[:-_KEPT_PLANS]:
            path.unlink(missing_ok=True)

    def _path(self, epoch: int) -> Path:
        digest = json_digest([self._stream, epoch]).removeprefix("sha256:")
        return self._folder / f"{digest[:32]}.npy"
