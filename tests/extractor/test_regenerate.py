"""`regenerate`: the target's own answers, in order, continued after an interruption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from eagle3data.cli.regenerate import regenerate as command
from eagle3data.extractor import regenerate as module
from eagle3data.extractor.chat import ChatEncoder
from eagle3data.extractor.engines.choice import EngineOptions
from eagle3data.extractor.generate import Answer, AnswerReader, GeneratorOptions
from eagle3data.extractor.generate_transformers import TransformersGenerator
from eagle3data.extractor.messages import Message
from eagle3data.extractor.prepare import prepare
from eagle3data.extractor.prompts import read_prompts
from eagle3data.extractor.regenerate import RegenerateOptions, RegenerateReport, regenerate
from eagle3data.schema.errors import InputError, MismatchError

Row = dict[str, Any]


class Echo(TransformersGenerator):
    """A generator that repeats the question and remembers its batches."""

    batches: ClassVar[list[list[str]]] = []

    def __init__(
        self, name: str, model: str, encoder: ChatEncoder, options: GeneratorOptions
    ) -> None:
        self._batch_size = options.batch_size or 128
        self.window = 2 * self._batch_size

    def answer(self, conversations: Sequence[list[Message]]) -> list[Answer]:
        asked = [talk[-1]["content"] for talk in conversations]
        self.batches.append(asked)
        return [
            self._echo(f"{len(talk)} {text}", cut="cut" in text)
            for talk, text in zip(conversations, asked, strict=True)
        ]

    def _echo(self, text: str, *, cut: bool) -> Answer:
        ending = {"finish_reason": "length"} if cut else {}
        message = {"role": "assistant", "content": text, **ending}
        return Answer(message=message, tokens=1, cut=cut)


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> type[Echo]:
    monkeypatch.setattr(module, "load_generator", Echo)
    monkeypatch.setattr(Echo, "batches", [])
    return Echo


def question(text: str) -> Row:
    return {"messages": [{"role": "user", "content": text}]}


class Bench:
    """A folder with the model at hand."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.out = folder / "answers.jsonl"

    def run(self, *rows: Row | str, **options: Any) -> RegenerateReport:
        source = self.folder / "rows.jsonl"
        text = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        source.write_text("\n".join(text) + "\n")
        options = {"engine": EngineOptions(engine="transformers"), **options}
        return regenerate([str(source)], str(self.model), self.out, RegenerateOptions(**options))

    def lines(self) -> list[Row]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path, smollm2: Path) -> Bench:
    return Bench(tmp_path, smollm2)


def test_the_models_own_answers(bench: Bench) -> None:
    """In float32, so that a batch of other members gives the same tokens."""
    options = {"max_new_tokens": 10, "dtype": "float32", "batch_size": 4}
    two = {"turns": ["What is the capital of France?", "And of Italy? Explain at length."]}
    rows = [question("Say hello."), two, {"prompt": "Name a colour.", "id": 7}]
    report = bench.run(*rows, **options)
    first, second, third = bench.lines()
    assert [len(row["messages"]) for row in (first, second, third)] == [2, 4, 2]
    assert third["id"] == "7"
    assert second["messages"][1] == {
        "role": "assistant",
        "content": "The capital of France is Paris.",
    }
    cut = second["messages"][3]
    assert cut["finish_reason"] == "length"
    assert report.answers == 4
    assert report.cut_answers == sum(
        message.get("finish_reason") == "length"
        for row in bench.lines()
        for message in row["messages"]
    )

    encoder = ChatEncoder.for_model(str(bench.model))
    alone = TransformersGenerator(
        str(bench.model),
        encoder,
        AnswerReader(encoder),
        GeneratorOptions(dtype="float32", max_new_tokens=10, longest=100),
    )
    (again,) = alone.answer([second["messages"][:3]])
    assert (again.message, again.cut, again.tokens) == (cut, True, 10)

    # A cut answer has no end of turn to learn; a finished one has.
    out = bench.folder / "prompts.arrow"
    prepare([str(bench.out)], str(bench.model), out)
    prompts = read_prompts(out).table.to_pylist()
    assert prompts[1]["input_ids"][-2] in encoder.stop_ids
    assert not prompts[1]["loss_mask"][-2]
    assert sum(prompts[1]["loss_mask"]) == 8 + 10
    assert dict(prompts[2]["source_extra"])["id"] == "7"


def test_order_and_batches(bench: Bench, echo: type[Echo]) -> None:
    texts = ["long " * n for n in (9, 1, 5, 3, 7, 2)]
    bench.run(*map(question, texts), batch_size=2)
    assert [row["messages"][0]["content"] for row in bench.lines()] == texts
    sizes = [[len(text) for text in batch] for batch in echo.batches]
    assert sizes == [[5, 15], [25, 45], [10, 35]]


def test_old_answers_are_written_anew(bench: Bench, echo: type[Echo]) -> None:
    row = {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "old"},
            {"role": "user", "content": "cut"},
        ]
    }
    report = bench.run(row)
    (line,) = bench.lines()
    assert [message["content"] for message in line["messages"]] == [
        "s",
        "a",
        "2 a",
        "cut",
        "4 cut",
    ]
    assert line["messages"][-1]["finish_reason"] == "length"
    assert (report.answers, report.cut_answers) == (2, 1)


@pytest.mark.parametrize("complete", [0, 1, 3, 4, 7, 10])
def test_continues_after_the_last_complete_line(
    bench: Bench, echo: type[Echo], complete: int
) -> None:
    rows = [question(f"number {i}") for i in range(10)]
    bench.run(*rows, batch_size=2)
    whole = bench.out.read_bytes()
    lines = whole.splitlines(keepends=True)
    bench.out.write_bytes(b"".join(lines[:complete]) + b'{"source": "x')
    before = list(echo.batches)
    echo.batches.clear()
    report = bench.run(*rows, batch_size=2)
    assert report.kept == complete
    assert bench.out.read_bytes() == whole
    # Batches have the same members as without an interruption, and done ones are left out.
    assert echo.batches == before[complete // 2 :]


def test_bad_rows_are_refused(bench: Bench, echo: type[Echo]) -> None:
    tool = {"messages": [{"role": "tool", "content": "r"}, {"role": "user", "content": "q"}]}
    report = bench.run(
        question("a"),
        "no json",
        tool,
        {"messages": [{"role": "system", "content": "s"}]},
        {"text": "x"},
        question("word " * 9000),
        question("b"),
    )
    text = bench.out.with_suffix(".rejects.jsonl").read_text()
    rejects = [json.loads(line) for line in text.splitlines()]
    assert [row["line"] for row in rejects] == [2, 3, 4, 5, 6]
    reasons = [row["reason"] for row in rejects]
    for found, expected in zip(
        reasons, ["no JSON", "tool results", "no user", "neither", "too long"], strict=True
    ):
        assert expected in found
    assert (report.rows, report.rejected) == (7, 5)
    assert [row["source"].rpartition(":")[2] for row in bench.lines()] == ["1", "7"]


def test_other_settings_or_sources_are_refused(bench: Bench, echo: type[Echo]) -> None:
    rows = [question("a"), question("b")]
    bench.run(*rows)
    with pytest.raises(MismatchError, match="max_new_tokens is 1024, now 5"):
        bench.run(*rows, max_new_tokens=5)
    with pytest.raises(MismatchError, match="temperature is 0.0, now 0.5, seed is None, now 0"):
        bench.run(*rows, temperature=0.5)
    with pytest.raises(MismatchError, match="now 'no more rows'"):
        bench.run(rows[0])
    bench.out.write_text('{"messages": []}\n')
    with pytest.raises(MismatchError, match="was not written by regenerate"):
        bench.run(*rows)
    assert bench.out.read_text() == '{"messages": []}\n'


def test_options_out_of_range(bench: Bench) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        RegenerateOptions(max_new_tokens=0)
    with pytest.raises(InputError, match="batch size 0 must be at least 1"):
        RegenerateOptions(batch_size=0)
    with pytest.raises(InputError, match="expected auto, vllm, transformers"):
        bench.run(question("a"), engine=EngineOptions(engine="llama"))
    with pytest.raises(InputError, match="expected bfloat16"):
        bench.run(question("a"), dtype="int8")
    with pytest.raises(InputError, match="no rows"):
        bench.run("")


def test_command(bench: Bench, echo: type[Echo], capsys: pytest.CaptureFixture[str]) -> None:
    source = bench.folder / "rows.jsonl"
    source.write_text(json.dumps(question("a")) + "\n")
    run = partial(command, [str(source)], str(bench.model), str(bench.out), engine="transformers")
    run(json=True)
    assert json.loads(capsys.readouterr().out)["answers"] == 1
    run()
    assert "1 from an earlier run" in capsys.readouterr().out
