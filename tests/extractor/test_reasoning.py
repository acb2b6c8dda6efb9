"""What an answer thinks before it speaks is kept, where its template has a place for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3data.extractor.chat import ChatEncoder
from eagle3data.extractor.generate import Answer, AnswerReader
from eagle3data.extractor.messages import Message
from eagle3data.extractor.reasoning import find_tags
from eagle3data.storage.tokenizer import load_tokenizer
from tests.extractor import templates

ASKED: list[Message] = [{"role": "user", "content": "q"}]

# The prompt opens the reasoning, the model closes it; no white space between the parts.
OPENED_BY_PROMPT = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '\n' }}"
    "{%- if m['role'] == 'assistant' %}{{- '<think>' + (m['reasoning'] or '') + '</think>' }}"
    "{%- endif %}"
    "{{- m['content'] + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>' }}{%- endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return load_tokenizer(str(smollm2))


def _encoder(tokenizer: Any, template: str, monkeypatch: pytest.MonkeyPatch) -> ChatEncoder:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    return ChatEncoder(tokenizer)


def _read(encoder: ChatEncoder, tokenizer: Any, text: str, *, cut: bool = False) -> Answer:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return AnswerReader(encoder).read(ids if cut else [*ids, tokenizer.eos_token_id], ASKED)


def _masked(encoder: ChatEncoder, tokenizer: Any, message: Message) -> str:
    """What `prepare` will train of it."""
    (encoded,) = encoder.encode([*ASKED, message])
    pairs = zip(encoded.input_ids, encoded.loss_mask, strict=True)
    return str(tokenizer.decode([token for token, masked in pairs if masked]))


@pytest.mark.parametrize(
    ("template", "field", "text"),
    [
        (templates.STRIPS_REASONING, "reasoning_content", "<think>\nhm, so\n</think>\n\nyes"),
        (OPENED_BY_PROMPT, "reasoning", "hm, so</think>yes"),
    ],
)
def test_reasoning_and_answer_apart(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str, field: str, text: str
) -> None:
    encoder = _encoder(tokenizer, template, monkeypatch)
    answer = _read(encoder, tokenizer, text)
    assert answer.message == {"role": "assistant", "content": "yes", field: "hm, so"}
    assert not answer.cut
    assert _masked(encoder, tokenizer, answer.message) == text + "<|im_end|>"


@pytest.mark.parametrize(
    ("template", "field", "text"),
    [
        (templates.STRIPS_REASONING, "reasoning_content", "<think>\nhm, so"),
        (OPENED_BY_PROMPT, "reasoning", "hm, so"),
    ],
)
def test_reasoning_that_was_cut_off(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str, field: str, text: str
) -> None:
    encoder = _encoder(tokenizer, template, monkeypatch)
    answer = _read(encoder, tokenizer, text, cut=True)
    expected = {"role": "assistant", "content": "", field: "hm, so", "finish_reason": "length"}
    assert answer.message == expected
    # Nobody wrote a closing tag, so nobody learns one.
    assert _masked(encoder, tokenizer, answer.message) == text


@pytest.mark.parametrize(
    "text", ["yes", "yes, </think> is a tag", "<think>\n\n</think>\n\nyes", "a<think>b</think>c"]
)
def test_nothing_is_lost_of_other_answers(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    encoder = _encoder(tokenizer, templates.STRIPS_REASONING, monkeypatch)
    message = _read(encoder, tokenizer, text).message
    rendered = encoder.render([*ASKED, message])
    parts = [message.get("reasoning_content", ""), message["content"]]
    assert all(part in rendered or part == text for part in parts)
    assert text.replace("\n", "").endswith(message["content"].replace("\n", ""))
    if not text.startswith("<think>"):
        assert message["content"] == text


def test_a_template_that_knows_no_reasoning(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for template in (templates.CHATML_DEFAULT_SYSTEM, templates.EMPTY_THINK, templates.TOOLS):
        encoder = _encoder(tokenizer, template, monkeypatch)
        assert find_tags(encoder) is None
        answer = _read(encoder, tokenizer, "<think>hm</think>yes")
        assert answer.message["content"] == "<think>hm</think>yes"


def test_reasoning_that_the_template_would_drop_stays_in_the_content(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that shows a thought of one word only."""
    short = OPENED_BY_PROMPT.replace(
        "(m['reasoning'] or '')", "(m['reasoning'] or '').split()[:1] | join"
    )
    encoder = _encoder(tokenizer, short, monkeypatch)
    assert find_tags(encoder) is not None
    answer = _read(encoder, tokenizer, "two words</think>yes")
    assert answer.message["content"] == "two words</think>yes"
