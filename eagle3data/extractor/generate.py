"""What answers conversations: turns and answers, whichever engine writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from eagle3data.extractor.chat import ChatEncoder
from eagle3data.extractor.engines.choice import EngineOptions
from eagle3data.extractor.messages import Message, RowError
from eagle3data.extractor.reasoning import find_tags
from eagle3data.schema.errors import InputError

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: its message, its length in tokens, and whether the limit cut it off."""

    message: Message
    tokens: int
    cut: bool


@dataclass(kw_only=True)
class Talk:
    """A conversation that the target answers turn by turn.

    Attributes:
        blocks: the messages before each answer.
        seed: of its sampling.
        is_kept: an earlier run has written its answers; they are needed again only where the
            answers of others depend on them.
        messages: asked and answered so far.
        answers: in the order of their turns.
    """

    blocks: Sequence[Sequence[Message]]
    seed: int = 0
    is_kept: bool = False
    messages: list[Message] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether every turn is answered."""
        return len(self.answers) == len(self.blocks)

    @property
    def characters(self) -> int:
        """Of all that is asked."""
        return sum(len(message["content"]) for block in self.blocks for message in block)

    def ask(self) -> list[Message]:
        """Ask the next turn; all messages up to it."""
        self.messages += self.blocks[len(self.answers)]
        return self.messages

    def take(self, answer: Answer) -> None:
        """Note the answer to what was asked."""
        self.messages.append(answer.message)
        self.answers.append(answer)


@dataclass(frozen=True, kw_only=True)
class GeneratorOptions:
    """How answers are written.

    Attributes:
        dtype: dtype the model runs in.
        max_new_tokens: an answer is cut there.
        temperature: 0 is greedy.
        batch_size: conversations answered at once; None leaves it to the engine.
        longest: tokens of the longest conversation with its answers.
        engine: how the model is loaded.
    """

    dtype: str
    max_new_tokens: int
    temperature: float = 0.0
    batch_size: int | None = None
    longest: int
    engine: EngineOptions = field(default_factory=EngineOptions)


class Generator(Protocol):
    """A loaded target that answers.

    Attributes:
        window: conversations that it wants at a time.
    """

    window: int

    def converse(self, talks: Sequence[Talk]) -> Iterator[Talk]:
        """Answer all turns of a window; each talk comes back once it is done, in any order.

        Equal windows give equal answers, as far as the engine allows.

        Raises:
            RowError: the chat template refuses a conversation.
        """

    def close(self) -> None:
        """End what the engine has started; may be called twice."""


class AnswerReader:
    """Token ids that a target wrote to the message that they are."""

    def __init__(self, encoder: ChatEncoder) -> None:
        """Read with the tokenizer and the chat template of the target.

        Raises:
            InputError: nothing is known to end its answers.
        """
        if not encoder.stop_ids:
            raise InputError("the model names no token that ends an answer (eos_token_id).")
        self.ends = sorted(encoder.stop_ids)
        self._encoder = encoder
        self._tags = find_tags(encoder)

    def read(self, ids: Sequence[int], asked: list[Message]) -> Answer:
        """An answer; its reasoning is apart where the chat template has a place for it.

        A reasoning that was cut off has no content, and `finish_reason: length` as every answer
        that was.
        """
        end = next((at for at, token in enumerate(ids) if token in self.ends), None)
        answer = list(ids if end is None else ids[:end])
        text = self._encoder.decode(answer)
        cut = end is None
        # A limit may fall inside a character of several tokens.
        text = text.rstrip("\N{REPLACEMENT CHARACTER}") if cut else text
        message = self._message(text, asked, cut=cut)
        if cut:
            message["finish_reason"] = "length"
        return Answer(message=message, tokens=len(answer) + (not cut), cut=cut)

    def _message(self, text: str, asked: list[Message], *, cut: bool) -> Message:
        whole = {"role": "assistant", "content": text}
        parts = self._tags.split(text, cut=cut) if self._tags else None
        if self._tags is None or parts is None:
            return whole
        split = {"role": "assistant", "content": parts[1], self._tags.field: parts[0]}
        return split if self._says(split, text, asked) else whole

    def _says(self, message: Message, text: str, asked: list[Message]) -> bool:
        """Whether the template writes the message as the target did, but for white space."""
        try:
            rendered = self._encoder.render([*asked, message])
        except RowError:
            return False
        return _squeeze(text) in _squeeze(rendered)


def load_generator(
    name: str, model: str, encoder: ChatEncoder, options: GeneratorOptions
) -> Generator:
    """Load a target with the engine of this name.

    Raises:
        InputError, EngineError: as the engines.
    """
    if options.dtype not in DTYPES:
        raise InputError(f"dtype {options.dtype}; expected {', '.join(DTYPES)}.")
    reader = AnswerReader(encoder)
    if name == "vllm":
        from eagle3data.extractor.generate_vllm import VllmGenerator

        return VllmGenerator(model, encoder, reader, options)
    from eagle3data.extractor.generate_transformers import TransformersGenerator

    return TransformersGenerator(model, encoder, reader, options)


def _squeeze(text: str) -> str:
    return "".join(text.split())
