"""Answers written by the target itself: the conversations that its draft will meet when serving."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from eagle3data.extractor.chat import ChatEncoder, context_length
from eagle3data.extractor.generate import TargetGenerator
from eagle3data.extractor.messages import Message, RowError, normalise_messages, row_messages
from eagle3data.extractor.sources import RejectsFile, output_file, read_rows, scalars
from eagle3data.schema.errors import InputError, MismatchError

_WINDOW_BATCHES = 2
_ASKED = ("messages", "conversations", "prompt", "turns")


@dataclass(kw_only=True)
class RegenerateOptions:
    """How answers are written.

    Attributes:
        max_new_tokens: an answer is cut there and marked `finish_reason: length`.
        temperature: 0 is greedy.
        batch_size: conversations answered at once.
        dtype: dtype the model runs in.
        seed: of the sampling, when the temperature is above 0.
    """

    max_new_tokens: int = 1024
    temperature: float = 0.0
    batch_size: int = 128
    dtype: str = "bfloat16"
    seed: int = 0
    revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.batch_size < 1 or self.temperature < 0:
            raise InputError(
                f"max new tokens {self.max_new_tokens} and batch size {self.batch_size} must be at "
                f"least 1, temperature {self.temperature} at least 0."
            )


@dataclass(kw_only=True)
class RegenerateReport:
    """What was written. Token counts are of this run only, rows of the whole file."""

    conversations: str
    rejects: str
    rows: int = 0
    kept: int = 0
    rejected: int = 0
    answers: int = 0
    cut_answers: int = 0
    new_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A conversation with its answers left out: blocks of messages, each to be answered."""

    place: str
    blocks: list[list[Message]]
    extra: dict[str, str]


def regenerate(
    sources: Sequence[str],
    model: str,
    out: str | Path,
    options: RegenerateOptions | None = None,
    on_rows: Callable[[int, int], None] | None = None,
) -> RegenerateReport:
    """Let the target answer every user message, in the order of the sources.

    Rows hold `messages`, `conversations`, `turns` (a list of user messages) or `prompt` (one).
    Assistant messages in them are dropped and written anew, each seeing the new ones before it.
    Running it again continues after the last complete line of the output. Batches are formed in
    the same way each time, so a run that was interrupted gives the same answers.

    Args:
        out: JSONL of `messages`; beside it the rows that could not be used.
        on_rows: told of conversations and new tokens as they are written.

    Raises:
        InputError: a source or the model can't be read.
        MismatchError: the output holds something else, or was made with other settings.
    """
    options = options or RegenerateOptions()
    on_rows = on_rows or _unheard
    encoder = ChatEncoder.for_model(
        model, revision=options.revision, trust_remote_code=options.trust_remote_code
    )
    limit = context_length(model, options.revision)
    target = output_file(out, sources)
    rejects = RejectsFile.beside(target)
    report = RegenerateReport(conversations=str(out), rejects=str(rejects.path))
    asked = _read(sources, rejects, encoder, limit, options.max_new_tokens)
    report.rows = len(asked) + len(rejects.reasons)
    if not report.rows:
        raise InputError(f"{', '.join(sources)}: no rows in there.")
    rejects.finish()
    report.rejected = len(rejects.reasons)
    settings = {
        "regenerated_by": Path(model).name if Path(model).is_dir() else model,
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
    }
    report.kept = _resume(target, asked, settings)
    on_rows(report.kept, 0)
    if report.kept == len(asked):
        return report
    generator = TargetGenerator(
        model,
        encoder,
        dtype=options.dtype,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
    )
    try:
        with target.open("a", encoding="utf-8") as file:
            for rows in _answered(asked, report, generator, options, on_rows):
                for row, messages in rows:
                    line = {"source": row.place, **row.extra, **settings, "messages": messages}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"{target} can't be written: {error}") from error
    return report


def _answered(
    asked: list[_Asked],
    report: RegenerateReport,
    generator: TargetGenerator,
    options: RegenerateOptions,
    on_rows: Callable[[int, int], None],
) -> Iterator[list[tuple[_Asked, list[Message]]]]:
    """Answered rows, a window at a time; within one, rows of like length share a batch."""
    window = options.batch_size * _WINDOW_BATCHES
    for begin in range(report.kept - report.kept % window, len(asked), window):
        done: dict[int, list[Message]] = {}
        members = range(begin, min(begin + window, len(asked)))
        order = iter(sorted(members, key=lambda i: (len(asked[i].blocks), _length(asked[i]), i)))
        while batch := list(islice(order, options.batch_size)):
            if all(i < report.kept for i in batch):
                continue
            generator.seed(options.seed + batch[0])
            answered = _converse(generator, [asked[i].blocks for i in batch], report)
            done.update(zip(batch, answered, strict=True))
            on_rows(sum(i >= report.kept for i in batch), report.new_tokens)
        yield [(asked[i], done[i]) for i in members if i >= report.kept]


def _converse(
    generator: TargetGenerator, blocks: list[list[list[Message]]], report: RegenerateReport
) -> list[list[Message]]:
    """Answer a batch of conversations turn by turn."""
    talks: list[list[Message]] = [[] for _ in blocks]
    for turn in range(max(map(len, blocks))):
        live = [i for i, asked in enumerate(blocks) if turn < len(asked)]
        for i in live:
            talks[i] += blocks[i][turn]
        answers = generator.answer([talks[i] for i in live])
        for i, answer in zip(live, answers, strict=True):
            message = {"role": "assistant", "content": answer.text}
            if answer.cut:
                message["finish_reason"] = "length"
            talks[i].append(message)
            report.answers += 1
            report.cut_answers += answer.cut
            report.new_tokens += answer.tokens
    return talks


def _read(
    sources: Sequence[str],
    rejects: RejectsFile,
    encoder: ChatEncoder,
    limit: int | None,
    max_new_tokens: int,
) -> list[_Asked]:
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
            asked.append(_Asked(place=row.place, blocks=blocks, extra=extra))
        except RowError as error:
            rejects.add(row, str(error))
    return asked


def _unheard(_rows: int, _tokens: int) -> None:
    """Nobody wants to know of progress."""


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


def _length(asked: _Asked) -> int:
    return sum(len(message["content"]) for block in asked.blocks for message in block)


def _resume(path: Path, asked: list[_Asked], settings: dict[str, Any]) -> int:
    """How many complete lines an earlier run left; what follows them is cut off.

    Raises:
        MismatchError: the lines are not the beginning of what this run would write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return 0
    rows = 0
    complete = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            _require_same(path, rows, line, asked, settings)
            rows += 1
            complete += len(line)
    os.truncate(path, complete)
    return rows


def _require_same(
    path: Path, row: int, line: bytes, asked: list[_Asked], settings: dict[str, Any]
) -> None:
    try:
        found = json.loads(line)
        facts = {key: found[key] for key in ("source", *settings)}
    except (ValueError, KeyError, TypeError):
        raise MismatchError(
            f"{path}, line {row + 1} was not written by regenerate; choose another --out."
        ) from None
    wanted = {"source": asked[row].place if row < len(asked) else "no more rows", **settings}
    if facts != wanted:
        differs = ", ".join(
            f"{key} is {facts[key]!r}, now {wanted[key]!r}"
            for key in wanted
            if facts[key] != wanted[key]
        )
        raise MismatchError(
            f"{path}, line {row + 1} comes from another run ({differs}); delete the file to start "
            "anew, or give the same sources and settings to continue it."
        )
