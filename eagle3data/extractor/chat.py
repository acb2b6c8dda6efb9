"""Chat template to token ids and loss mask: which tokens are the assistant's, exactly.

Most chat templates don't say which part of their output the model wrote, so it is found by
rendering: the prompt of a turn (with its generation prompt), the conversation up to and with the
turn, and the same with a marker instead of the turn's content. What lies where the marker lay is
the assistant's; what the template itself supplies (headers, an empty `<think></think>`) is not.
Every turn's tokens are decoded again and compared with its content before they are believed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eagle3data.extractor.messages import Message, RowError, reasoning, says_something
from eagle3data.extractor.tokens import Tokens, encodings
from eagle3data.schema.errors import InputError
from eagle3data.schema.target import model_folder, text_config
from eagle3data.storage.tokenizer import load_tokenizer

_MARKER = "e3answermarkere3"
_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, kw_only=True)
class EncodedChat:
    """Token ids of one rendering and the mask of the assistant's tokens in it.

    Attributes:
        input_ids: `[T]` token ids, the rendering's special tokens included.
        loss_mask: `[T]` 1 where the model must generate the token, end of turn included.
        turns: positions of the messages whose tokens carry loss here.
    """

    input_ids: list[int]
    loss_mask: list[int]
    turns: list[int]


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """One assistant turn in the rendering that ends with it: `text[start:end]` is the model's."""

    index: int
    text: str
    start: int
    end: int
    closing: str  # what the template puts after the turn
    cut: bool  # the answer was cut off by a limit: nobody generated its end of turn


class ChatEncoder:
    """Renders and masks conversations with one tokenizer's chat template."""

    def __init__(self, tokenizer: Any, *, stop_ids: Sequence[int] = ()) -> None:
        """Use a tokenizer.

        Args:
            tokenizer: a transformers tokenizer.
            stop_ids: ids that end a turn besides the tokenizer's own end of text, as the model's
                `generation_config.json` lists them.
        """
        self._tokenizer = tokenizer
        self.stop_ids: set[int] = {*stop_ids, tokenizer.eos_token_id} - {None}

    @classmethod
    def for_model(
        cls, model: str, *, revision: str | None = None, trust_remote_code: bool = False
    ) -> ChatEncoder:
        """Use a model's tokenizer and the ends of turn that its folder names.

        Raises:
            InputError: there is no tokenizer.
        """
        tokenizer = load_tokenizer(model, revision=revision, trust_remote_code=trust_remote_code)
        return cls(tokenizer, stop_ids=_stop_ids(model_folder(model, revision)))

    def encode(self, messages: list[Message], tools: list[Any] | None = None) -> list[EncodedChat]:
        """Encode a conversation; each assistant turn carries loss in exactly one result.

        Usually that is one rendering. A template that rewrites earlier turns (dropping their
        reasoning) needs more: a turn's tokens are taken from a rendering that still contains it
        as the model wrote it. What follows the last assistant turn carries no loss and is left out.

        Args:
            messages: what `normalise_messages` returns.
            tools: tool descriptions, as the template takes them.

        Raises:
            InputError: the tokenizer has no chat template.
            RowError: no assistant turn, the template refuses the conversation, or the masked
                tokens can't be shown to be the assistant's.
        """
        indices = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        if not any(says_something(messages[at]) for at in indices):
            raise RowError("no assistant token: no assistant message says anything")
        turns = [self._turn(messages, at, tools) for at in indices]
        encoded: list[EncodedChat] = []
        while turns:
            text = turns[-1].text
            kept = [turn for turn in turns if text.startswith(turn.text[: turn.end])]
            encoded.append(self._mask(text, kept))
            turns = [turn for turn in turns if turn not in kept]
        return encoded[::-1]

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        """Token ids after which the model writes its next turn.

        Raises:
            InputError: the tokenizer has no chat template.
            RowError: the template refuses the conversation.
        """
        text = self.render(messages, generation_prompt=True)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def render(
        self,
        messages: list[Message],
        tools: list[Any] | None = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """A conversation as the chat template writes it.

        Args:
            generation_prompt: with what stands before the next assistant turn.

        Raises:
            InputError: the tokenizer has no chat template.
            RowError: the template refuses the conversation.
        """
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise InputError(
                f"the tokenizer of {self._tokenizer.name_or_path} has no chat template, which "
                "messages need; use an instruction-tuned model's folder or add chat_template.jinja."
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                add_generation_prompt=generation_prompt,
            )
        except (TemplateError, TypeError, ValueError, KeyError, IndexError) as error:
            raise RowError(f"the chat template refuses the conversation: {error}") from None
        return text

    def decode(self, ids: list[int]) -> str:
        """The very text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _turn(self, messages: list[Message], index: int, tools: list[Any] | None) -> _Turn:
        """Find the span of `messages[index]` in the rendering that ends with it."""
        message = messages[index]
        earlier = messages[:index]
        text = self.render([*earlier, message], tools)
        prompt = self.render(earlier, tools, generation_prompt=True) if earlier else ""
        marked = self.render([*earlier, {**message, "content": _MARKER}], tools)
        before, found, after = marked.rpartition(_MARKER)
        if not found:
            raise RowError(f"message {index}: the chat template leaves its content out")
        prompted = len(prompt) if text.startswith(prompt) else 0
        headed = len(before) if text.startswith(before) else 0
        plain = not reasoning(message) and not message.get("tool_calls")
        if plain and headed and text.endswith(after) and headed + len(after) <= len(text):
            start, end = headed, len(text) - len(after)
        else:
            start = end = 0
        if not end or not _same(text[start:end], message["content"]):
            # The template takes the message apart (reasoning, tool calls): what follows its
            # header, up to the end of the turn, is the model's.
            start = prompted if reasoning(message) else max(prompted, headed)
            end = self._end_of_turn(text)
            if message.get("finish_reason") == "length" and not message["content"]:
                # Cut off while it thought: the closing tag is the template's.
                thought = reasoning(message).strip()
                end = text.rfind(thought) + len(thought) if thought in text else end
            if not start:
                raise RowError(
                    f"message {index}: where it begins can't be told, since the template "
                    "renders it in another way than its generation prompt announces"
                )
            _check_pieces(index, message, text[start:end], text[:start])
        if prompted and not text[prompted:start].strip():
            start = prompted  # a space before the answer is the model's own
        # What the generation prompt supplies is never generated.
        start = min(max(start, prompted), end)
        self._check_tags(index, [*earlier, message], tools, text, start, end)
        return _Turn(
            index=index,
            text=text,
            start=start,
            end=end,
            closing=text[end:],
            cut=message.get("finish_reason") == "length",
        )

    def _end_of_turn(self, text: str) -> int:
        """Where the special token stands that ends a rendering; its stripped end if none does."""
        stripped = text.rstrip()
        ending = next((s for s in self._special if stripped.endswith(s)), "")
        return len(stripped) - len(ending)

    @cached_property
    def _special(self) -> list[str]:
        """Texts of the special tokens, longest first."""
        tokens = {str(t) for t in self._tokenizer.added_tokens_decoder.values() if t.special}
        return sorted({*tokens, *self._tokenizer.all_special_tokens}, key=lambda t: (-len(t), t))

    def _check_tags(
        self,
        index: int,
        messages: list[Message],
        tools: list[Any] | None,
        text: str,
        start: int,
        end: int,
    ) -> None:
        """Where the template marks the assistant's part itself, what was found must lie in it."""
        template = self._tokenizer.get_chat_template(tools=tools)
        if start == end or not _GENERATION_TAG.search(template):
            return
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, spans = render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **self._tokenizer.special_tokens_map,
        )
        inside = any(low <= start and end <= high for low, high in spans[0])
        if rendered[0] != text or not inside:
            raise RowError(
                f"message {index}: the template's generation tags leave out part of what it holds"
            )

    def _mask(self, text: str, turns: list[_Turn]) -> EncodedChat:
        """Tokenize a rendering and mask its turns, by the first encoding that proves right."""
        spans = [(turn.start, turn.end) for turn in turns]
        wrong = "no encoding"
        for tokens in encodings(self._tokenizer, text, spans):
            mask = [0] * len(tokens.ids)
            problems = []
            for turn in turns:
                first, last = tokens.span(turn.start, turn.end)
                decoded = self.decode(tokens.ids[first:last])
                wanted = turn.text[turn.start : turn.end]
                if not tokens.proves(decoded, wanted):
                    problems.append(f"message {turn.index} reads {decoded!r}, expected {wanted!r}")
                if self.stop_ids.intersection(tokens.ids[first:last]):
                    raise RowError(
                        f"message {turn.index} holds the text of a token that ends a turn"
                    )
                closed = last if turn.cut else self._closed(tokens, last, turn)
                mask[first:closed] = [1] * (closed - first)
            if not problems:
                return EncodedChat(
                    input_ids=tokens.ids, loss_mask=mask, turns=[turn.index for turn in turns]
                )
            wrong = problems[0]
        raise RowError(f"masked tokens decode to something else: {_short(wrong)}")

    def _closed(self, tokens: Tokens, last: int, turn: _Turn) -> int:
        """Position after the token that ends the turn, which the model must generate too."""
        closing = self._tokenizer(turn.closing, add_special_tokens=False)["input_ids"]
        special = set(self._special_ids)
        ends = self.stop_ids | {next((i for i in closing if i in special), None)}
        for at in range(last, len(tokens.ids)):
            if tokens.ids[at] in ends:
                return at + 1
            if self.decode([tokens.ids[at]]).strip():
                break
        return last

    @cached_property
    def _special_ids(self) -> list[int]:
        added = self._tokenizer.added_tokens_decoder.items()
        return [*self._tokenizer.all_special_ids, *(i for i, token in added if token.special)]


def _same(found: str, content: str) -> bool:
    """Equal, or but for white space at the ends, which templates trim."""
    return found == content or found.strip() == content.strip()


def _squeeze(text: str) -> str:
    return "".join(text.split())


def context_length(model: str, revision: str | None = None) -> int | None:
    """A model's context in tokens, where its config says it."""
    config = json.loads((model_folder(model, revision) / "config.json").read_text())
    limit = text_config(config).get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def _check_pieces(index: int, message: Message, found: str, header: str) -> None:
    """A message that the template takes apart must be there whole: reasoning, content, calls.

    White space is the template's to change here, and the header may already hold the beginning
    (an opening `<think>`).
    """
    text, supplied = _squeeze(found), _squeeze(header)
    at = 0
    for piece in _pieces(message):
        position = text.find(piece, at)
        length = len(piece)
        if position < 0 and at == 0:
            opened = max(n for n in range(len(piece) + 1) if supplied.endswith(piece[:n]))
            length -= opened
            position = 0 if text.startswith(piece[opened:]) else -1
        if position < 0:
            raise RowError(
                f"message {index}: the chat template drops part of it: {_short(repr(piece))}"
            )
        at = position + length


def _pieces(message: Message) -> list[str]:
    """What an assistant message says, in the order of its rendering, without white space."""
    pieces = [reasoning(message), message["content"]]
    for call in message.get("tool_calls", []):
        function = call.get("function", call)
        pieces.append(function["name"])
        if isinstance(function["arguments"], dict):
            pieces += [str(name) for name in function["arguments"]]
    return [_squeeze(piece) for piece in pieces]


def _stop_ids(folder: Path) -> list[int]:
    """End-of-sequence ids of a folder's generation_config.json; none where there is none."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return []
    try:
        ends = json.loads(path.read_text()).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path} can't be read: {error}") from None
    return [i for i in (ends if isinstance(ends, list) else [ends]) if isinstance(i, int)]


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
