"""Answers written by the target itself: the conversations that its draft will meet when serving."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3data.extractor.asked import Asked, read_asked
from eagle3data.extractor.chat import ChatEncoder, context_length
from eagle3data.extractor.engines.choice import EngineOptions, choose_engine
from eagle3data.extractor.generate import Generator, GeneratorOptions, Talk, load_generator
from eagle3data.extractor.messages import Message
from eagle3data.extractor.sources import RejectsFile, output_file
from eagle3data.schema.errors import InputError, MismatchError

_BY = "regenerated_by"


@dataclass(kw_only=True)
class RegenerateOptions:
    """How answers are written.

    Attributes:
        max_new_tokens: an answer is cut there and marked `finish_reason: length`.
        temperature: 0 is greedy.
        batch_size: conversations answered at once; by default what suits the engine. A killed run
            loses at most twice as many.
        dtype: dtype the model runs in.
        seed: of the sampling, when the temperature is above 0.
        engine: which engine, and how it is loaded.
    """

    max_new_tokens: int = 1024
    temperature: float = 0.0
    batch_size: int | None = None
    dtype: str = "bfloat16"
    seed: int = 0
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        sizes = {"max new tokens": self.max_new_tokens, "batch size": self.batch_size}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise InputError(f"{name} {value} must be at least 1.")
        if self.temperature < 0:
            raise InputError(f"temperature {self.temperature} must be at least 0.")


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
    What the target thinks before it speaks is kept: as `reasoning_content` where its chat template
    has a place for it, else within the content. Running it again continues after the last complete
    line of the output. Batches are formed in the same way each time, so a run that was interrupted
    gives the same answers.

    Args:
        out: JSONL of `messages`; beside it the rows that could not be used.
        on_rows: told of conversations and new tokens as they are written.

    Raises:
        InputError: a source or the model can't be read, or an engine that can't be used.
        EngineError: the engine ended; what is written stays.
        MismatchError: the output holds something else, or was made with other settings.
    """
    options = options or RegenerateOptions()
    on_rows = on_rows or _unheard
    engine = choose_engine(options.engine)
    encoder = ChatEncoder.for_model(
        model,
        revision=options.engine.revision,
        trust_remote_code=options.engine.trust_remote_code,
    )
    limit = context_length(model, options.engine.revision)
    target = output_file(out, sources)
    rejects = RejectsFile.beside(target)
    report = RegenerateReport(conversations=str(out), rejects=str(rejects.path))
    asked = read_asked(sources, rejects.add, encoder, limit, options.max_new_tokens)
    report.rows = len(asked) + len(rejects.reasons)
    if not report.rows:
        raise InputError(f"{', '.join(sources)}: no rows in there.")
    rejects.finish()
    report.rejected = len(rejects.reasons)
    settings = {
        _BY: Path(model).name if Path(model).is_dir() else model,
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        **({"seed": options.seed} if options.temperature else {}),
        "engine": engine,
    }
    report.kept = _resume(target, asked, settings)
    on_rows(report.kept, 0)
    if report.kept == len(asked):
        return report
    generator = load_generator(engine, model, encoder, _generator_options(options, asked))
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
    finally:
        generator.close()
    return report


def _generator_options(options: RegenerateOptions, asked: list[Asked]) -> GeneratorOptions:
    return GeneratorOptions(
        dtype=options.dtype,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        batch_size=options.batch_size,
        longest=max(row.longest for row in asked),
        engine=options.engine,
    )


def _answered(
    asked: list[Asked],
    report: RegenerateReport,
    generator: Generator,
    options: RegenerateOptions,
    on_rows: Callable[[int, int], None],
) -> Iterator[list[tuple[Asked, list[Message]]]]:
    """Answered rows, a window at a time."""
    window = generator.window
    for begin in range(report.kept - report.kept % window, len(asked), window):
        members = range(begin, min(begin + window, len(asked)))
        talks = [
            Talk(blocks=asked[i].blocks, seed=options.seed + i, is_kept=i < report.kept)
            for i in members
        ]
        for talk in generator.converse(talks):
            report.answers += len(talk.answers)
            report.cut_answers += sum(answer.cut for answer in talk.answers)
            report.new_tokens += sum(answer.tokens for answer in talk.answers)
            on_rows(not talk.is_kept, report.new_tokens)
        yield [
            (asked[i], talk.messages)
            for i, talk in zip(members, talks, strict=True)
            if not talk.is_kept
        ]


def _unheard(_rows: int, _tokens: int) -> None:
    """Nobody wants to know of progress."""


def _resume(path: Path, asked: list[Asked], settings: dict[str, Any]) -> int:
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
    path: Path, row: int, line: bytes, asked: list[Asked], settings: dict[str, Any]
) -> None:
    try:
        found = json.loads(line)
        facts = {key: found[key] for key in ("source", _BY)}
        facts |= {key: found.get(key) for key in settings}
    except (ValueError, KeyError, TypeError, AttributeError):
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
