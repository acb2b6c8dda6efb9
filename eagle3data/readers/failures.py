"""Samples that a loader left out, and how many it may."""

from __future__ import annotations

import datetime
import json
import logging
from pathlib import Path

from eagle3data.readers.documents import Documents
from eagle3data.schema.errors import CorruptionError, InputError

logger = logging.getLogger(__name__)


class Failures:
    """What was left out, counted, told and written down: never silently.

    Attributes:
        skipped: samples so far.
    """

    def __init__(
        self, documents: Documents, *, skip: bool, limit: int | None, ledger: str | Path | None
    ) -> None:
        """Nothing has failed yet.

        Args:
            documents: what is read.
            skip: leave damaged samples out; false raises at the first.
            limit: how many may be left out; None for any number.
            ledger: file of the run to which a JSON line a sample is appended.

        Raises:
            InputError: a limit below 0, or a ledger that can't be written.
        """
        if limit is not None and limit < 0:
            raise InputError(f"max_skipped is {limit}; expected a number from 0, or None.")
        self._documents, self._skip, self._limit = documents, skip, limit
        self._ledger = Path(ledger) if ledger is not None else None
        self.skipped = 0
        if self._ledger is not None:
            self._append("")

    def add(self, document: int, error: CorruptionError) -> None:
        """Leave a sample, or a piece of one, out.

        Raises:
            CorruptionError: none may be left out, or no more.
        """
        if not self._skip:
            raise error
        if self._limit is not None and self.skipped >= self._limit:
            logger.error("%d samples were skipped, which is all that may be", self.skipped)
            raise error
        self.skipped += 1
        logger.warning("skipped: %s", error)
        row = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "data_set": self._documents.dataset(document).url,
            "shard": self._documents.shard(document),
            "sample_id": self._documents.sample_id(document),
            "kind": error.kind,
            "reason": str(error),
        }
        self._append(json.dumps(row) + "\n")

    def _append(self, text: str) -> None:
        if self._ledger is None:
            return
        try:
            self._ledger.parent.mkdir(parents=True, exist_ok=True)
            with self._ledger.open("a") as file:
                file.write(text)
        except OSError as error:
            raise InputError(
                f"the run's ledger {self._ledger} can't be written: {error.strerror or error}."
            ) from None
