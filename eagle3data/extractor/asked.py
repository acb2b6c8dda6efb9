"""Conversations to be answered: rows of `messages`, `turns` or `prompt`, without old answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3data.extractor.chat import ChatEncoder
from eagle3data.extractor.messages import Message, RowError, normalise_messages, row_messages
from eagle3data.extractor.sources import SourceRow, read_rows, scalars

_HEADER_TOKENS = 64
"""Room for what a chat template writes around each turn."""
_ASKED = ("messages", "conversations", "prompt", "turns")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A conversation with its answers left out: blocks of messages, each to be answered.

    Attributes:
        place: the file and line it is from.
        longest: tokens that it may have with its answers.
        extra: the row's other plain values, as text.
    """

    place: str
    blocks: list[list[Message]]
    longest: int
    extra: dict[str, str]


def read_asked(
    sources: Sequence[str],
    reject: Callable[[SourceRow, str], None],
    encoder: ChatEncoder,
    limit: int | None,
    max_new_tokens: int,
) -> list[Asked]:
    """Conversations to answer, in the order of the sources.

    Rows hold `messages`, `conversations`, `turns` (a list of user messages) or `prompt` (one).

    Args:
        sources: JSONL or Parquet.
        reject: told of a row that can't be used, and why.
        encoder: of the model that answers.
        limit: its context in tokens; None where that isn't known.
        max_new_tokens: of each answer.

    Raises:
        InputError: a source that can't be read.
    """
    asked = []
    for row in read_rows(sources):
        try:
            if row.value is None:
                raise RowError(row.problem)
            blocks = _blocks(_questions(row.value))
            length = len(encoder.prompt_ids([message for block in blocks for message in block]))
            longest = length + max_new_tokens * len(blocks)
            if limit is not None and longest > limit:
                raise RowError(
                    f"too long: up to {longest} tokens with its answers, the context is {limit}"
                )
            extra = scalars(row.value, [*_ASKED, "source"])
            longest += _HEADER_TOKENS * len(blocks)
            asked.append(Asked(place=row.place, blocks=blocks, longest=longest, extra=extra))
        except RowError as error:
            reject(row, str(error))
    return asked


def _questions(row: dict[str, Any]) -> list[Message]:
    messages = row_messages(row)
    if messages is not None:
        return messages
    turns = row.get("turns") if row.get("turns") is not None else row.get("prompt")
    if turns is None:
        raise RowError("neither `messages`, `conversations`, `turns` nor `prompt` in the row")
    if isinstance(turns, list) and turns and isinstance(turns[0], dict):
        return normalise_messages(turns)
    given = turns if isinstance(turns, list) else [turns]
    return normalise_messages([{"role": "user", "content": turn} for turn in given])


def _blocks(messages: list[Message]) -> list[list[Message]]:
    """Cut a conversation after every user message, without its old answers."""
    blocks: list[list[Message]] = [[]]
    for message in messages:
        if message["role"] == "tool":
            raise RowError("tool results: the tools can't be called again")
        if message["role"] == "assistant":
            continue
        blocks[-1].append(message)
        if message["role"] == "user":
            blocks.append([])
    if len(blocks) == 1:
        raise RowError("no user message to answer")
    return blocks[:-1]
