"""One source row to the samples it makes, here or in processes beside this one."""

from __future__ import annotations

import json
import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from typing import Any

import numpy as np

from eagle3data.extractor.chat import ChatEncoder, context_length
from eagle3data.extractor.messages import RowError, row_messages
from eagle3data.extractor.sources import SourceRow, scalars
from eagle3data.schema.digest import sample_digest
from eagle3data.schema.errors import Eagle3DataError, InputError
from eagle3data.schema.target import describe_target

_ROWS_AT_A_TIME = 64
_CONVERSATION_COLUMNS = ("messages", "conversations", "input_ids", "loss_mask", "tools")

Samples = list[dict[str, Any]]
"""Rows of `PROMPTS_SCHEMA`."""


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """How rows become prompts.

    Attributes:
        max_length: longer samples are refused, never truncated; by default the model's context.
        eval_fraction: share of the samples in the `eval` split, chosen by a hash of the content.
        max_rejects: share of the rows that may be refused before the run is not fine.
        strict: stop at the first row that can't be used.
        workers: processes that convert rows; 1 is this one. What is written is the same.
    """

    max_length: int | None = None
    eval_fraction: float = 0.05
    max_rejects: float = 0.05
    strict: bool = False
    workers: int = 1
    revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"a max length of {self.max_length} tokens; expected at least 1.")
        if self.workers < 1:
            raise InputError(f"{self.workers} workers; expected at least 1.")
        for name in ("eval_fraction", "max_rejects"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name.replace('_', ' ')} is {value}; expected 0 to 1.")


class Converter:
    """Turns one source row into prompts rows, for one model."""

    def __init__(self, model: str, options: PrepareOptions) -> None:
        """Describe the target; the tokenizer is loaded with the first conversation.

        Raises:
            InputError: the model can't be read.
        """
        self._model = model
        self._options = options
        target, self.tokenizer = describe_target(model, options.revision)
        self._vocab_size = target.vocab_size
        self.max_length = options.max_length or context_length(model, options.revision)

    @cached_property
    def _encoder(self) -> ChatEncoder:
        options = self._options
        return ChatEncoder.for_model(
            self._model, revision=options.revision, trust_remote_code=options.trust_remote_code
        )

    def convert(self, row: SourceRow) -> list[dict[str, Any]]:
        """The samples of a row: one, or more where the template rewrites earlier turns.

        Raises:
            RowError: the row can't be used.
        """
        if row.value is None:
            raise RowError(row.problem)
        extra = scalars(row.value, _CONVERSATION_COLUMNS)
        messages = row_messages(row.value)
        if messages is not None:
            encoded = self._encoder.encode(messages, _tools(row.value))
            parts = [(chat.input_ids, chat.loss_mask, chat.turns) for chat in encoded]
        elif row.value.get("input_ids") is not None:
            parts = [(*_given(row.value), [])]
        else:
            raise RowError("neither `messages`, `conversations` nor `input_ids` in the row")
        for ids, mask, _ in parts:
            self._check(ids, mask)
        # All parts of a row belong to one split: they repeat each other's beginning.
        split = self._split(_name(*parts[-1][:2]))
        return [
            {
                "sample_id": _name(ids, mask),
                "input_ids": ids,
                "loss_mask": [bool(kept) for kept in mask],
                "source": row.place,
                "split": split,
                "source_extra": list(
                    {**extra, **({"turns": json.dumps(turns)} if len(parts) > 1 else {})}.items()
                ),
            }
            for ids, mask, turns in parts
        ]

    def _check(self, ids: list[int], mask: list[int]) -> None:
        if not any(mask):
            raise RowError("no assistant token: the loss mask is empty")
        if self.max_length is not None and len(ids) > self.max_length:
            raise RowError(f"too long: {len(ids)} tokens, the limit is {self.max_length}")
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise RowError(
                f"token ids from {min(ids)} to {max(ids)}, outside of the vocabulary "
                f"0..{self._vocab_size - 1}"
            )

    def _split(self, name: str) -> str:
        return "eval" if int(name, 16) < self._options.eval_fraction * 16 ** len(name) else "train"


def _given(row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Ids and mask of a row that brings its own."""
    ids, mask = row["input_ids"], row.get("loss_mask")
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        raise RowError("`input_ids` is not a list of whole numbers")
    if not isinstance(mask, list) or any(m not in (0, 1) for m in mask):
        raise RowError("`loss_mask` is not a list of 0 and 1")
    if len(mask) != len(ids):
        raise RowError(f"mask length: {len(ids)} token ids but {len(mask)} mask values")
    return ids, [int(m) for m in mask]


def _tools(row: dict[str, Any]) -> list[Any] | None:
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            raise RowError("`tools` is not JSON") from None
    if tools and not isinstance(tools, list):
        raise RowError(f"`tools` is {type(tools).__name__}, expected a list")
    return tools or None


def _name(ids: list[int], mask: list[int]) -> str:
    return sample_digest(
        np.asarray(ids, dtype=np.int64).astype(np.int32), np.asarray(mask, dtype=np.uint8)
    )


def converted(
    rows: Iterable[SourceRow], model: str, converter: Converter, options: PrepareOptions
) -> Iterator[tuple[SourceRow, Samples | RowError]]:
    """Each row and what it makes, or why it can't be used; in the order of the rows.

    At most a few hundred rows a worker are on their way, however many there are.

    Args:
        converter: used where there is no other process.

    Raises:
        InputError: the tokenizer can't be used.
        Eagle3DataError: a worker was ended from outside.
    """
    if options.workers == 1:
        for row in rows:
            yield row, _outcome(converter, row)
        return
    waiting: deque[tuple[list[SourceRow], Future[list[Samples | RowError]]]] = deque()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
        try:
            for some in _some(rows):
                waiting.append((some, pool.submit(_outcomes, model, options, some)))
                if len(waiting) > 2 * options.workers:
                    yield from _next(waiting)
            while waiting:
                yield from _next(waiting)
        except BrokenProcessPool:
            raise Eagle3DataError(
                "a process that converts rows was ended from outside: killed, or out of memory. "
                "Nothing was written; use fewer --workers."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _some(rows: Iterable[SourceRow]) -> Iterator[list[SourceRow]]:
    left = iter(rows)
    while some := list(islice(left, _ROWS_AT_A_TIME)):
        yield some


def _next(
    waiting: deque[tuple[list[SourceRow], Future[list[Samples | RowError]]]],
) -> Iterator[tuple[SourceRow, Samples | RowError]]:
    rows, future = waiting.popleft()
    yield from zip(rows, future.result(), strict=True)


def _outcome(converter: Converter, row: SourceRow) -> Samples | RowError:
    try:
        return converter.convert(row)
    except RowError as error:
        return error


@cache
def _converter(model: str, options: PrepareOptions) -> Converter:
    """The one of a worker process."""
    return Converter(model, options)


def _outcomes(
    model: str, options: PrepareOptions, rows: list[SourceRow]
) -> list[Samples | RowError]:
    return [_outcome(_converter(model, options), row) for row in rows]
