"""A draft at work: vLLM answers prompts with it, and once more without."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3data.evaluation.acceptance import Acceptance
from eagle3data.extractor.asked import Asked, read_asked
from eagle3data.extractor.chat import ChatEncoder, context_length
from eagle3data.extractor.engines.choice import EngineOptions
from eagle3data.extractor.engines.vllm_process import require_free
from eagle3data.extractor.generate import AnswerReader, GeneratorOptions, Talk
from eagle3data.extractor.generate_vllm import VllmGenerator
from eagle3data.extractor.sources import SourceRow
from eagle3data.schema.errors import InputError
from eagle3data.trainer.export import export_draft
from eagle3data.trainer.layouts import ExportFormat
from eagle3data.trainer.published import is_for_sglang, is_published_folder, open_draft

OTHER = "other"
"""Category of a prompt that names none."""
_WARM_UP = Talk(blocks=[[{"role": "user", "content": "Hello!"}]])

OnTalk = Callable[[int], None]
OnReject = Callable[[SourceRow, str], None]


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """How a draft is measured.

    Attributes:
        num_speculative_tokens: K, tokens drafted a step.
        max_new_tokens: an answer is cut there.
        temperature: 0 is greedy.
        seed: of the sampling, when the temperature is above 0.
        dtype: dtype that target and draft run in.
        compare: answer everything once more without the draft, for speed and equality.
        limit: only so many conversations of each category; None for all.
        engine: how vLLM is loaded.
    """

    num_speculative_tokens: int = 3
    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    dtype: str = "bfloat16"
    compare: bool = True
    limit: int | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        for name in ("num_speculative_tokens", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)} must be at least 1.")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit {self.limit} must be at least 1.")


@dataclass(kw_only=True)
class Part:
    """One category.

    Attributes:
        conversations: answered.
        answers: of all its conversations.
        tokens: that the target wrote with the draft.
        seconds: that it took for them.
        tokens_without: that it wrote without the draft; None where that was not measured.
        seconds_without: that it took for those.
        same: answers whose text is equal with and without.
        acceptance: vLLM's counts.
    """

    conversations: int = 0
    answers: int = 0
    tokens: int = 0
    seconds: float = 0.0
    tokens_without: int | None = None
    seconds_without: float | None = None
    same: int | None = None
    acceptance: Acceptance

    @property
    def speed(self) -> float:
        """Tokens a second with the draft."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def speed_without(self) -> float | None:
        """Tokens a second without it."""
        if self.tokens_without is None or not self.seconds_without:
            return None
        return self.tokens_without / self.seconds_without

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **self.acceptance.as_dict(),
            "conversations": self.conversations,
            "answers": self.answers,
            "same_answers_without_draft": self.same,
            "tokens": self.tokens,
            "tokens_per_second": self.speed,
            "tokens_per_second_without_draft": self.speed_without,
        }


@dataclass(kw_only=True)
class Evaluation:
    """What a draft was measured to do.

    Attributes:
        draft: as it was named.
        model: the target.
        num_speculative_tokens: K.
        parts: by category, in the order in which they first come.
        rejected: rows that could not be used.
    """

    draft: str
    model: str
    num_speculative_tokens: int
    parts: dict[str, Part]
    rejected: int

    @property
    def whole(self) -> Part:
        """All categories together."""
        parts = list(self.parts.values())
        counted = [part.acceptance for part in parts]

        def total(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            return None if None in values else sum(values)

        return Part(
            conversations=total("conversations"),
            answers=total("answers"),
            tokens=total("tokens"),
            seconds=total("seconds"),
            tokens_without=total("tokens_without"),
            seconds_without=total("seconds_without"),
            same=total("same"),
            acceptance=Acceptance(
                drafts=sum(one.drafts for one in counted),
                draft_tokens=sum(one.draft_tokens for one in counted),
                accepted_tokens=sum(one.accepted_tokens for one in counted),
                accepted_by_position=tuple(
                    map(sum, zip(*(one.accepted_by_position for one in counted), strict=True))
                ),
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "draft": self.draft,
            "model": self.model,
            "num_speculative_tokens": self.num_speculative_tokens,
            **self.whole.as_dict(),
            "categories": {name: part.as_dict() for name, part in self.parts.items()},
            "rejected": self.rejected,
        }


def evaluate(
    draft: Path,
    model: str,
    sources: Sequence[str],
    options: EvaluateOptions,
    *,
    on_start: Callable[[int], None],
    on_talk: OnTalk,
    on_reject: OnReject,
) -> Evaluation:
    """Measure a draft in a real vLLM.

    Args:
        draft: a run's folder, a checkpoint, or a folder in the layout that vLLM loads.
        model: Hugging Face folder or id of the target.
        sources: JSONL or Parquet with `turns`, `messages` or `prompt`, and perhaps `category`.
        options: see there.
        on_start: told how many conversations will be answered in all.
        on_talk: told of each that is.
        on_reject: told of a row that can't be used, and why.

    Raises:
        InputError: files that can't be used, or nothing to answer.
        EngineError: vLLM can't load target or draft, or ended.
    """
    engine = options.engine
    encoder = ChatEncoder.for_model(
        model, revision=engine.revision, trust_remote_code=engine.trust_remote_code
    )
    rejected: list[str] = []

    def reject(row: SourceRow, reason: str) -> None:
        rejected.append(row.place)
        on_reject(row, reason)

    limit = context_length(model, engine.revision)
    asked = read_asked(sources, reject, encoder, limit, options.max_new_tokens)
    groups = _by_category(asked, options.limit)
    if not groups:
        raise InputError(f"{', '.join(sources)}: no conversation to answer in there.")
    count = sum(map(len, groups.values()))
    on_start(count * (1 + options.compare))
    with _for_vllm(draft) as folder:
        speculative = {
            "method": "eagle3",
            "model": str(folder),
            "num_speculative_tokens": options.num_speculative_tokens,
        }
        parts, answers = _with_draft(model, encoder, groups, options, speculative, on_talk)
    if options.compare:
        _without_draft(model, encoder, groups, options, parts, answers, on_talk)
    return Evaluation(
        draft=str(draft),
        model=model,
        num_speculative_tokens=options.num_speculative_tokens,
        parts=parts,
        rejected=len(rejected),
    )


def _by_category(asked: Sequence[Asked], limit: int | None) -> dict[str, list[Asked]]:
    groups: dict[str, list[Asked]] = {}
    for one in asked:
        group = groups.setdefault(one.extra.get("category") or OTHER, [])
        if limit is None or len(group) < limit:
            group.append(one)
    return groups


def _with_draft(
    model: str,
    encoder: ChatEncoder,
    groups: dict[str, list[Asked]],
    options: EvaluateOptions,
    speculative: dict[str, Any],
    on_talk: OnTalk,
) -> tuple[dict[str, Part], dict[str, list[str]]]:
    given = {"speculative_config": speculative, "disable_log_stats": False}
    parts: dict[str, Part] = {}
    answers: dict[str, list[str]] = {}
    with _generator(model, encoder, groups, options, given) as generator:
        before = Acceptance.from_metrics(generator.llm_engine.get_metrics())
        for name, group in groups.items():
            talks, seconds = _answer(generator, group, options, on_talk)
            now = Acceptance.from_metrics(generator.llm_engine.get_metrics())
            parts[name] = Part(
                conversations=len(talks),
                answers=sum(len(talk.answers) for talk in talks),
                tokens=_tokens(talks),
                seconds=seconds,
                acceptance=now.since(before),
            )
            answers[name] = _texts(talks)
            before = now
    return parts, answers


def _without_draft(
    model: str,
    encoder: ChatEncoder,
    groups: dict[str, list[Asked]],
    options: EvaluateOptions,
    parts: dict[str, Part],
    answers: dict[str, list[str]],
    on_talk: OnTalk,
) -> None:
    with _generator(model, encoder, groups, options, {}) as generator:
        for name, group in groups.items():
            talks, seconds = _answer(generator, group, options, on_talk)
            part = parts[name]
            part.tokens_without, part.seconds_without = _tokens(talks), seconds
            pairs = zip(answers[name], _texts(talks), strict=True)
            part.same = sum(with_draft == without for with_draft, without in pairs)


@contextmanager
def _generator(
    model: str,
    encoder: ChatEncoder,
    groups: dict[str, list[Asked]],
    options: EvaluateOptions,
    given: dict[str, Any],
) -> Iterator[VllmGenerator]:
    """A loaded vLLM that has answered something already: first steps are slower."""
    require_free(options.engine.arguments, given, "evaluate")
    arguments = {**options.engine.arguments, **given}
    generator = VllmGenerator(
        model,
        encoder,
        AnswerReader(encoder),
        GeneratorOptions(
            dtype=options.dtype,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            longest=max(one.longest for group in groups.values() for one in group),
            engine=replace(options.engine, arguments=arguments),
        ),
    )
    try:
        list(generator.converse([replace(_WARM_UP, messages=[], answers=[])]))
        yield generator
    finally:
        generator.close()


def _answer(
    generator: VllmGenerator, group: Sequence[Asked], options: EvaluateOptions, on_talk: OnTalk
) -> tuple[list[Talk], float]:
    talks = [
        Talk(blocks=one.blocks, seed=options.seed + number) for number, one in enumerate(group)
    ]
    begin = time.perf_counter()
    for _ in generator.converse(talks):
        on_talk(1)
    return talks, time.perf_counter() - begin


def _tokens(talks: Sequence[Talk]) -> int:
    return sum(answer.tokens for talk in talks for answer in talk.answers)


def _texts(talks: Sequence[Talk]) -> list[str]:
    return [str(answer.message) for talk in talks for answer in talk.answers]


@contextmanager
def _for_vllm(draft: Path) -> Iterator[Path]:
    """A draft's folder as vLLM loads it; a run or a checkpoint is exported for the time being.

    So is what we wrote for SGLang: vLLM would take its layer ids for its own.
    """
    if is_published_folder(draft) and not is_for_sglang(draft):
        yield draft
        return
    with tempfile.TemporaryDirectory(prefix="eagle3data-draft-") as place:
        folder = Path(place) / "draft"
        export_draft(open_draft(str(draft)).draft, folder, ExportFormat.VLLM)
        yield folder
