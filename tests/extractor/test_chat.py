"""The masked tokens are the assistant's, whatever the chat template does."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3data.extractor.chat import ChatEncoder, EncodedChat
from eagle3data.extractor.messages import RowError, normalise_messages, row_messages
from eagle3data.schema.errors import InputError
from eagle3data.storage.tokenizer import load_tokenizer
from tests.extractor import templates

Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return load_tokenizer(str(smollm2))


@pytest.fixture(scope="module")
def smollm2_chat(smollm2: Path) -> ChatEncoder:
    return ChatEncoder.for_model(str(smollm2))


def with_template(
    tokenizer: Any, template: str | None, stop_ids: Sequence[int] = ()
) -> ChatEncoder:
    changed = copy.copy(tokenizer)
    changed.chat_template = template
    return ChatEncoder(changed, stop_ids=stop_ids)


def chat(*contents: str, system: str | None = None) -> Messages:
    """Messages by user and assistant in turn."""
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def masked_spans(tokenizer: Any, encoded: EncodedChat) -> list[str]:
    """What the runs of masked tokens decode to."""
    runs: list[list[int]] = []
    before = 0
    for token, kept in zip(encoded.input_ids, encoded.loss_mask, strict=True):
        if kept and not before:
            runs.append([])
        if kept:
            runs[-1].append(token)
        before = kept
    return [tokenizer.decode(run) for run in runs]


def spans(encoder: ChatEncoder, tokenizer: Any, messages: Messages) -> list[list[str]]:
    encoded = encoder.encode(normalise_messages(messages))
    return [masked_spans(tokenizer, part) for part in encoded]


def test_smollm2_multi_turn_with_system(smollm2_chat: ChatEncoder, tokenizer: Any) -> None:
    messages = chat("Hi", "Hello there!", "And now?", "Bye.", system="Be brief.")
    (encoded,) = smollm2_chat.encode(normalise_messages(messages))
    assert masked_spans(tokenizer, encoded) == ["Hello there!<|im_end|>", "Bye.<|im_end|>"]
    assert encoded.turns == [2, 4]
    whole = tokenizer.apply_chat_template(messages, return_dict=False)
    assert encoded.input_ids == whole


@pytest.mark.parametrize("answer", ["\n\nHello", " Hello ", "\nfour\n", "été 数学 🙂", "x" * 3000])
def test_white_space_and_unicode_are_kept(
    smollm2_chat: ChatEncoder, tokenizer: Any, answer: str
) -> None:
    assert spans(smollm2_chat, tokenizer, chat("q", answer)) == [[answer + "<|im_end|>"]]


def test_empty_turns(smollm2_chat: ChatEncoder, tokenizer: Any) -> None:
    assert spans(smollm2_chat, tokenizer, chat("", "", "q", "a")) == [["<|im_end|>", "a<|im_end|>"]]
    with pytest.raises(RowError, match="no assistant token"):
        smollm2_chat.encode(chat("q", "", "q", ""))
    with pytest.raises(RowError, match="no assistant token"):
        smollm2_chat.encode(chat("q"))


def test_trailing_user_message_is_left_out(smollm2_chat: ChatEncoder, tokenizer: Any) -> None:
    (encoded,) = smollm2_chat.encode(chat("q", "a", "unanswered"))
    assert "unanswered" not in tokenizer.decode(encoded.input_ids)


def test_cut_answer_has_no_end_of_turn(smollm2_chat: ChatEncoder, tokenizer: Any) -> None:
    messages = chat("q", "It was a dark and")
    messages[1]["finish_reason"] = "length"
    assert spans(smollm2_chat, tokenizer, messages) == [["It was a dark and"]]


def test_answer_that_holds_an_end_of_turn_is_refused(smollm2_chat: ChatEncoder) -> None:
    with pytest.raises(RowError, match="ends a turn"):
        smollm2_chat.encode(chat("q", "one<|im_end|>two"))


def test_llama3_style_trims_and_ends_with_its_own_token(tokenizer: Any) -> None:
    encoder = with_template(tokenizer, templates.LLAMA3_STYLE)
    found = spans(encoder, tokenizer, chat("q", " a b ", "q", "c"))
    assert found == [["a b<|endoftext|>", "c<|endoftext|>"]]


def test_generation_tags_agree(tokenizer: Any) -> None:
    encoder = with_template(tokenizer, templates.GENERATION_TAGS)
    messages = chat("q", "a b", "q", "c")
    (encoded,) = encoder.encode(messages)
    tagged = tokenizer.apply_chat_template(
        messages,
        chat_template=templates.GENERATION_TAGS,
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    length = len(encoded.input_ids)
    assert encoded.loss_mask == tagged["assistant_masks"][:length]
    assert not any(tagged["assistant_masks"][length:])


def test_generation_tags_that_leave_the_answer_out(tokenizer: Any) -> None:
    encoder = with_template(tokenizer, templates.WRONG_TAGS)
    with pytest.raises(RowError, match="generation tags"):
        encoder.encode(chat("q", "a"))


def test_empty_think_block_of_the_prompt_carries_no_loss(tokenizer: Any) -> None:
    encoder = with_template(tokenizer, templates.EMPTY_THINK)
    assert spans(encoder, tokenizer, chat("q", "a", "q", "b")) == [["a<|im_end|>", "b<|im_end|>"]]
    (encoded,) = encoder.encode(chat("q", "a"))
    assert "<think>\n\n</think>" in tokenizer.decode(encoded.input_ids)


def test_rewritten_turns_come_from_a_rendering_that_holds_them(tokenizer: Any) -> None:
    encoder = with_template(tokenizer, templates.STRIPS_REASONING)
    messages = chat("q", "<think>\nhm\n</think>\n\na", "q", "<think>\nso\n</think>\n\nb")
    encoded = encoder.encode(messages)
    assert [part.turns for part in encoded] == [[1], [3]]
    found = [masked_spans(tokenizer, part) for part in encoded]
    assert found == [
        ["<think>\nhm\n</think>\n\na<|im_end|>"],
        ["<think>\nso\n</think>\n\nb<|im_end|>"],
    ]
    # The second rendering shows the first answer as the template rewrites it, without loss.
    assert "hm" not in tokenizer.decode(encoded[1].input_ids)


def test_reasoning_field(tokenizer: Any, smollm2_chat: ChatEncoder) -> None:
    messages = chat("q", "a")
    messages[1]["reasoning_content"] = "well"
    encoder = with_template(tokenizer, templates.STRIPS_REASONING)
    assert spans(encoder, tokenizer, messages) == [["<think>\nwell\n</think>\n\na<|im_end|>"]]
    with pytest.raises(RowError, match="drops part"):
        smollm2_chat.encode(messages)


def test_empty_think_block_that_only_the_rendering_holds(tokenizer: Any) -> None:
    encoder = with_template(tokenizer, templates.STRIPS_REASONING)
    assert spans(encoder, tokenizer, chat("q", "a")) == [["a<|im_end|>"]]


def test_plain_text_template(tokenizer: Any) -> None:
    encoder = with_template(tokenizer, templates.PLAIN_TEXT)
    assert spans(encoder, tokenizer, chat("q", "a b", "q", "c")) == [[" a b", " c"]]


def test_next_role_token_ends_a_turn(tokenizer: Any) -> None:
    """A template without an end token, whose model stops by opening the next turn."""
    template = templates.CHATML_DEFAULT_SYSTEM.replace("<|im_end|>\n", "")
    encoder = with_template(tokenizer, template, stop_ids=[tokenizer.bos_token_id])
    found = spans(encoder, tokenizer, chat("q", "a", "q", "b"))
    assert found == [["a<|im_start|>", "b"]]


def test_tool_calls_are_the_assistants_and_results_are_not(tokenizer: Any) -> None:
    encoder = with_template(tokenizer, templates.TOOLS)
    call = {"type": "function", "function": {"name": "add", "arguments": '{"left": 1}'}}
    messages: Messages = [
        {"role": "user", "content": "sum?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "result 7"},
        {"role": "assistant", "content": "Seven."},
    ]
    ((called, said),) = spans(encoder, tokenizer, messages)
    assert called.endswith('{"name": "add", "arguments": {"left": 1}}\n</tool_call><|im_end|>')
    assert "result" not in called
    assert said == "Seven.<|im_end|>"


def test_template_that_drops_the_call_is_refused(smollm2_chat: ChatEncoder) -> None:
    call = {"function": {"name": "add", "arguments": {}}}
    message = {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
    with pytest.raises(RowError, match="drops part"):
        smollm2_chat.encode(normalise_messages([*chat("q"), message]))


def test_template_that_drops_the_answer_or_refuses(tokenizer: Any) -> None:
    with pytest.raises(RowError, match="leaves its content out"):
        with_template(tokenizer, templates.DROPS_ASSISTANT).encode(chat("q", "a"))
    with pytest.raises(RowError, match="no system role"):
        with_template(tokenizer, templates.NO_SYSTEM).encode(chat("q", "a", system="s"))


def test_no_template_is_an_input_error(tokenizer: Any) -> None:
    with pytest.raises(InputError, match="no chat template"):
        with_template(tokenizer, None).encode(chat("q", "a"))


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="no tokenizer"):
        load_tokenizer(str(tmp_path))


class Slow:
    """A tokenizer that doesn't say where its tokens lie, as tiktoken ones don't."""

    is_fast = False

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        return self._tokenizer(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("answer", ["plain", "\nfour\n", "été 🙂"])
def test_tokenizer_without_offsets(tokenizer: Any, answer: str) -> None:
    encoder = ChatEncoder(Slow(tokenizer))
    messages = chat("q", answer, "q", "b", system="s")
    assert spans(encoder, tokenizer, messages) == [[answer + "<|im_end|>", "b<|im_end|>"]]


words = st.text(
    # SmolLM2's vocabulary lacks a few bytes, all of them of unassigned planes.
    st.characters(exclude_characters="<>\r", exclude_categories=("Cs", "Cc", "Co", "Cn")),
    max_size=40,
)


@pytest.mark.parametrize("name", [*templates.WHOLE, "smollm2"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_masked_spans_are_the_answers(tokenizer: Any, name: str, data: st.DataObject) -> None:
    encoder = with_template(tokenizer, templates.WHOLE.get(name, tokenizer.chat_template))
    turns = data.draw(st.lists(words, min_size=2, max_size=6))
    turns = turns[: len(turns) // 2 * 2]
    system = data.draw(st.none() | words)
    answers = turns[1::2]
    if not any(answer.strip() for answer in answers):
        return
    found: dict[int, str] = {}
    encoded = encoder.encode(chat(*turns, system=system))
    for part in encoded:
        runs = [run for run in masked_spans(tokenizer, part) if run.strip() or name != "plain text"]
        found.update(zip(part.turns, runs, strict=False))
    assert sorted(t for part in encoded for t in part.turns) == [
        2 * i + 1 + (system is not None) for i in range(len(answers))
    ]
    ending = {"llama3": "<|endoftext|>", "plain text": ""}.get(name, "<|im_end|>")
    if name == "plain text":
        answers = [answer for answer in answers if answer.strip()]
        assert [run.strip() for _, run in sorted(found.items())] == [a.strip() for a in answers]
        return
    stripped = [answer.strip() if name == "llama3" else answer for answer in answers]
    assert [run for _, run in sorted(found.items())] == [a + ending for a in stripped]


def test_sharegpt_and_parts() -> None:
    row = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    assert row_messages(row) == chat("q", "a")
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}
    assert row_messages({"messages": [parts]}) == [{"role": "user", "content": "ab"}]
    assert row_messages({"text": "x"}) is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "not a list with messages"),
        ({"messages": ["hi"]}, "not an object"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "unknown role 'narrator'"),
        ({"messages": [{"role": "user"}]}, "has no content"),
        ({"messages": [{"role": "user", "content": 3}]}, "expected text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "part of type image_url",
        ),
        ({"messages": chat("q"), "images": ["a.png"]}, "holds images"),
        ({"conversations": [{"from": "bot9", "value": "x"}]}, "unknown role 'bot9'"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "without a function name",
        ),
    ],
)
def test_unusable_messages(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        row_messages(row)


def test_tokenizer_that_puts_a_space_before_every_text() -> None:
    """SentencePiece's way, where pieces of a text don't decode to the whole again."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"]
    words = ["[INST] hello there how are you [/INST] fine and you"] * 4
    core.train_from_iterator(words, trainers.BpeTrainer(special_tokens=special, vocab_size=120))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    template = (
        "{%- for m in messages %}{%- if m['role'] == 'user' %}"
        "{{- '<s>[INST] ' + m['content'] + ' [/INST]' }}"
        "{%- else %}{{- ' ' + m['content'] + '</s>' }}{%- endif %}{%- endfor %}"
    )
    encoder = with_template(tokenizer, template)
    found = spans(encoder, tokenizer, chat("hello", "fine and you", "how", "you"))
    assert found == [["fine and you</s>", "you</s>"]]
