"""What an answer thinks before it speaks, told apart the way the model's chat template does it.

A template that knows reasoning puts a message's `reasoning_content` between tags of its own. The
tags are found by rendering a message of which both parts are known, so no model's are written here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from eagle3data.extractor.chat import ChatEncoder
from eagle3data.extractor.messages import REASONING, Message, RowError

_THOUGHT, _SAID = "e3thoughtmarkere3", "e3saidmarkere3"


@dataclass(frozen=True, kw_only=True)
class ReasoningTags:
    """How a template writes reasoning.

    Attributes:
        field: of a message, that the template takes it from.
        opening: what stands before it and is the model's to write; empty where the prompt ends
            with it.
        closing: what stands between it and the content.
    """

    field: str
    opening: str
    closing: str

    def split(self, text: str, *, cut: bool) -> tuple[str, str] | None:
        """Reasoning and content of an answer as it was written; None for one without reasoning.

        Args:
            cut: a limit cut it off; without the closing tag all of it is reasoning then.
        """
        tag = self.opening.strip()
        if not text.startswith(tag):
            return None
        begin = len(self.opening) if text.startswith(self.opening) else len(tag)
        reasoning, found, content = text[begin:].partition(self.closing.strip())
        if not found:
            return (reasoning, "") if cut else None
        before, _, after = self.closing.partition(self.closing.strip())
        return reasoning.removesuffix(before), content.removeprefix(after)


def find_tags(encoder: ChatEncoder) -> ReasoningTags | None:
    """The tags of a model's chat template; None where it knows no reasoning."""
    for field in REASONING:
        # A template that refuses this conversation may know reasoning; answers stay whole then.
        with suppress(RowError):
            tags = _tags_of(encoder, field)
            if tags is not None:
                return tags
    return None


def _tags_of(encoder: ChatEncoder, field: str) -> ReasoningTags | None:
    asked: list[Message] = [{"role": "user", "content": "?"}]
    prompt = encoder.render(asked, generation_prompt=True)
    text = encoder.render([*asked, {"role": "assistant", "content": _SAID, field: _THOUGHT}])
    before, thought, after = text.partition(_THOUGHT)
    closing, said, _ = after.partition(_SAID)
    if not (thought and said and closing.strip() and before.startswith(prompt)):
        return None
    return ReasoningTags(field=field, opening=before.removeprefix(prompt), closing=closing)
