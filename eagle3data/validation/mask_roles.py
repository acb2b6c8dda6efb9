"""How a chat template marks turns, learnt from conversations that it renders: headers as ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_WORDS = ("e3firstquestion", "e3firstanswer", "e3secondquestion", "e3secondanswer")
_SYSTEM = "e3systemprompt"
_ANY_WORDS = ("Apples", "Why")
_ASSISTANT = "assistant"


class UnknownRolesError(Exception):
    """Turns can't be told in the ids; its text says why."""


@dataclass(frozen=True)
class Header:
    """What a turn begins with.

    Attributes:
        role: whose turn.
        core: ids up to the last that is not white space.
        whole: ids up to the turn's content.
    """

    role: str
    core: tuple[int, ...]
    whole: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Roles:
    """A template's turns.

    Attributes:
        headers: the known ones, longest core first; the assistant may have several.
        openers: ids that begin a header.
        ends: ids that end an assistant's turn.
    """

    headers: list[Header]
    openers: frozenset[int]
    ends: frozenset[int]

    def at(self, ids: Sequence[int], place: int) -> list[Header]:
        """The headers whose core stands at a place."""
        return [h for h in self.headers if tuple(ids[place : place + len(h.core)]) == h.core]


def learn_roles(tokenizer: Any) -> Roles:
    """Learn how a tokenizer's chat template marks turns.

    Raises:
        UnknownRolesError: it doesn't mark them with tokens of their own, or can't be rendered.
    """
    text = _render(tokenizer, [*_chat(*_WORDS)])
    if text is None:
        raise UnknownRolesError("the chat template refuses a plain conversation")
    parts = _cut(text, _WORDS)
    asked = _cut(_render(tokenizer, _chat(_WORDS[0])) or "", _WORDS[:1])
    if parts is None or asked is None:
        raise UnknownRolesError("the chat template leaves messages out or changes their order")
    prompt = _cut(_render(tokenizer, _chat(_WORDS[0]), prompt=True) or "", _WORDS[:1])
    _, first, between, second, closing = parts
    found = list(_assistant_headers([first, second, prompt[1] if prompt else first], asked[1]))
    found.append(("user", between.removeprefix(closing)))
    system = _cut(
        _render(tokenizer, [{"role": "system", "content": _SYSTEM}, *_chat(*_WORDS[:2])]) or "",
        (_SYSTEM, *_WORDS[:2]),
    )
    if system is not None:
        found.append(("system", system[0]))
    marks = _marks(tokenizer)
    headers = [
        header
        for role, text in found
        if text.strip()
        for header in _headers(tokenizer, role, text, marks)
        if header.core and header.core[0] in marks
    ]
    if not any(header.role == _ASSISTANT for header in headers):
        raise UnknownRolesError("the chat template marks turns with plain text, not with tokens")
    ends = [token for token in _ids(tokenizer, closing) if token in marks]
    return Roles(
        headers=sorted(set(headers), key=lambda header: -len(header.core)),
        openers=frozenset(header.core[0] for header in headers),
        ends=frozenset({*ends[:1], tokenizer.eos_token_id} - {None}),
    )


def _assistant_headers(gaps: Sequence[str], user_end: str) -> Iterator[tuple[str, str]]:
    """What stands before an answer, without what ends the question where that is not all."""
    for gap in gaps:
        header = gap.removeprefix(user_end)
        yield _ASSISTANT, header if header.strip() else gap


def _chat(*contents: str) -> list[dict[str, str]]:
    roles = ("user", _ASSISTANT)
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(contents)]


def _render(tokenizer: Any, messages: list[dict[str, str]], *, prompt: bool = False) -> str | None:
    """A conversation as the template writes it; None if it refuses."""
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt
        )
    except (TemplateError, TypeError, ValueError, KeyError, IndexError):
        return None
    return text


def _cut(text: str, words: Sequence[str]) -> list[str] | None:
    """The text before, between and after the words; None unless each is there once, in order."""
    parts = []
    for word in words:
        before, found, text = text.partition(word)
        if not found or word in text:
            return None
        parts.append(before)
    return [*parts, text]


def _headers(tokenizer: Any, role: str, text: str, marks: set[int]) -> Iterator[Header]:
    """A header's ids: before words, and before what its last white space merges with."""
    core = _ids(tokenizer, text.strip())
    # A token that begins every text may come before the first header; some models (SmolLM2)
    # begin texts with the token that begins their headers.
    cut = len(core) > 1 and core[0] == tokenizer.bos_token_id and core[1] in marks
    before_words = (_ids(tokenizer, text.lstrip() + word) for word in _ANY_WORDS)
    for whole in (list(_common(*before_words)), _ids(tokenizer, text.lstrip())):
        yield Header(role=role, core=tuple(core[cut:]), whole=tuple(whole[cut:]))


def _common(first: Sequence[int], second: Sequence[int]) -> Iterator[int]:
    """What two sequences begin with alike."""
    for one, other in zip(first, second, strict=False):
        if one != other:
            return
        yield one


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _marks(tokenizer: Any) -> set[int]:
    """Ids that text alone doesn't make: added and special tokens."""
    return {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
