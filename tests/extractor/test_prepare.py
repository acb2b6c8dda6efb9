"""`prepare` on the real tokenizer: good rows become prompts, bad ones are refused by line."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from eagle3data.cli.prepare import prepare as command
from eagle3data.extractor.converter import Converter, PrepareOptions, converted
from eagle3data.extractor.prepare import PrepareReport, prepare
from eagle3data.extractor.prompts import read_prompts
from eagle3data.extractor.sources import SourceRow
from eagle3data.schema.errors import Eagle3DataError, InputError

Row = dict[str, Any]


def talk(question: str, answer: str) -> Row:
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def lines(path: Path, *rows: Row | str) -> str:
    text = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in text))
    return str(path)


def rejects_of(out: Path) -> list[Row]:
    text = out.with_suffix(".rejects.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


class Bench:
    """A folder with the model at hand."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.out = folder / "prompts.arrow"

    def run(self, *rows: Row | str, **options: Any) -> PrepareReport:
        source = lines(self.folder / "rows.jsonl", *rows)
        return prepare([source], str(self.model), self.out, PrepareOptions(**options))

    def table(self) -> list[Row]:
        rows: list[Row] = read_prompts(self.out).table.to_pylist()
        return rows


@pytest.fixture
def bench(tmp_path: Path, smollm2: Path) -> Bench:
    return Bench(tmp_path, smollm2)


def test_three_kinds_of_rows(bench: Bench) -> None:
    sharegpt = {
        "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}],
        "id": "x-1",
        "score": 0.5,
        "tags": ["not", "scalar"],
    }
    ids = {"input_ids": [5, 6, 7], "loss_mask": [False, True, True]}
    report = bench.run(talk("Hi", "Hello."), sharegpt, "", ids)
    rows = bench.table()
    assert report.ok
    assert (report.rows, report.samples, report.rejected) == (3, 3, 0)
    assert rows[0]["input_ids"] == rows[1]["input_ids"]
    assert rows[1]["sample_id"] == rows[0]["sample_id"] + "-2"
    assert [row["source"].rpartition(":")[2] for row in rows] == ["1", "2", "4"]
    assert dict(rows[1]["source_extra"]) == {"id": "x-1", "score": "0.5"}
    assert (rows[2]["input_ids"], rows[2]["loss_mask"]) == ([5, 6, 7], [False, True, True])
    assert report.loss_tokens == sum(sum(row["loss_mask"]) for row in rows)
    assert report.tokens == sum(len(row["input_ids"]) for row in rows)
    assert rejects_of(bench.out) == []


def test_parquet_is_the_same(bench: Bench) -> None:
    rows = [{**talk(f"Question {i}", f"Answer {i}"), "id": i} for i in range(5)]
    bench.run(*rows)
    by_line = bench.table()
    path = bench.folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    prepare([str(path)], str(bench.model), bench.out)
    by_row = bench.table()
    assert [r["source"] for r in by_row] == [f"{path}:{i}" for i in range(1, 6)]
    for row in [*by_line, *by_row]:
        del row["source"]
    assert by_row == by_line


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"messages": [', "no JSON"),
        ('"text"', "a JSON str, expected an object"),
        ({"text": "x"}, "neither `messages`"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "unknown role 'wizard'"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no assistant token"),
        (talk("q", "word " * 200), "too long: 2"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "url": "a.png"}]}]},
            "part of type image",
        ),
        ({**talk("q", "a"), "images": ["a.png"]}, "holds images"),
        ({"input_ids": [1, 49_152], "loss_mask": [0, 1]}, "outside of the vocabulary 0..49151"),
        ({"input_ids": [-1, 1], "loss_mask": [0, 1]}, "outside of the vocabulary"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "2 token ids but 1 mask values"),
        ({"input_ids": [1, 2], "loss_mask": [0, 2]}, "not a list of 0 and 1"),
        ({"input_ids": [1, 2], "loss_mask": [0, 0]}, "no assistant token"),
        ({"input_ids": [1, 2]}, "not a list of 0 and 1"),
        ({"input_ids": [1.5], "loss_mask": [1]}, "whole numbers"),
        ({**talk("q", "a"), "tools": "["}, "`tools` is not JSON"),
    ],
)
def test_bad_rows_are_refused_and_the_rest_done(bench: Bench, row: Row | str, reason: str) -> None:
    report = bench.run(talk("a", "b"), row, talk("c", "d"), max_length=100)
    (reject,) = rejects_of(bench.out)
    assert reject["line"] == 2
    assert reject["source"].endswith("rows.jsonl")
    assert reason in reject["reason"]
    assert [row["source"].rpartition(":")[2] for row in bench.table()] == ["1", "3"]
    assert not report.ok
    assert sum(report.reasons.values()) == report.rejected == 1


def test_a_line_that_is_not_utf8(bench: Bench) -> None:
    source = bench.folder / "rows.jsonl"
    source.write_bytes(json.dumps(talk("a", "b")).encode() + b'\n{"prompt": "\xff"}\n')
    prepare([str(source)], str(bench.model), bench.out)
    assert [r["reason"] for r in rejects_of(bench.out)] == ["not UTF-8 text"]


def test_few_rejects_are_fine(bench: Bench) -> None:
    rows = [talk(f"q {i}", "a") for i in range(20)]
    assert bench.run(*rows[:19], "no json").ok
    assert not bench.run(*rows[:18], "no json", "no json").ok
    assert bench.run(*rows[:18], "no json", "no json", max_rejects=0.1).ok


def test_strict_stops_and_writes_nothing(bench: Bench) -> None:
    with pytest.raises(InputError, match=r"rows.jsonl:2: no JSON"):
        bench.run(talk("a", "b"), "no json", strict=True)
    assert not bench.out.exists()


def test_several_workers_write_the_same(bench: Bench, tmp_path: Path) -> None:
    rows = [talk(f"How many are {n} and {n}?", f"{2 * n}.") for n in range(200)]
    rows[70] = {"id": "neither messages nor ids"}
    alone = bench.run(*rows)
    table, refused = bench.table(), rejects_of(bench.out)
    together = bench.run(*rows, workers=2)
    assert together == alone
    assert bench.table() == table
    assert rejects_of(bench.out) == refused
    with pytest.raises(InputError, match=r"rows.jsonl:71: neither .* Nothing was written"):
        bench.run(*rows, workers=2, strict=True)


def test_a_killed_worker_is_told(bench: Bench) -> None:
    """Killed amid its work: there are more rows than are on their way at once."""

    def rows() -> Iterator[SourceRow]:
        for number in range(1000):
            if number == 300:
                for worker in multiprocessing.active_children():
                    os.kill(worker.pid or 0, signal.SIGKILL)
            yield SourceRow(file="rows.jsonl", line=number + 1, value=talk("How many?", "Two."))

    options = PrepareOptions(workers=2)
    outcomes = converted(rows(), str(bench.model), Converter(str(bench.model), options), options)
    with pytest.raises(Eagle3DataError, match="ended from outside.*fewer --workers"):
        deque(outcomes, maxlen=0)


def test_split_follows_the_content(bench: Bench) -> None:
    rows = [talk(f"Question number {i}?", "Yes.") for i in range(200)]
    report = bench.run(*rows, *rows, eval_fraction=0.2)
    table = bench.table()
    splits = [row["split"] for row in table]
    assert splits[:200] == splits[200:]
    assert report.eval_samples == splits.count("eval")
    assert 0.1 < splits.count("eval") / 400 < 0.3
    assert len({row["sample_id"] for row in table}) == 400
    bench.run(*rows[::-1], eval_fraction=0.2)
    assert [row["split"] for row in bench.table()] == splits[:200][::-1]
    assert bench.run(*rows[:9], eval_fraction=0.0).eval_samples == 0
    assert bench.run(*rows[:9], eval_fraction=1.0).eval_samples == 9


def test_metadata(bench: Bench) -> None:
    bench.run(talk("a", "b"))
    prompts = read_prompts(bench.out)
    assert prompts.model == str(bench.model)
    assert prompts.max_length == 8192
    assert prompts.tokenizer.digest
    assert prompts.tokenizer.chat_template_digest


def test_sources_that_cannot_be_read(bench: Bench) -> None:
    def refused(source: Path, match: str) -> None:
        with pytest.raises(InputError, match=match):
            prepare([str(source)], str(bench.model), bench.out)
        assert not bench.out.exists()

    refused(bench.folder / "none.jsonl", "can't be read")
    refused(bench.folder, "can't be read")
    empty = bench.folder / "empty.jsonl"
    empty.write_text("\n")
    refused(empty, "no rows")
    array = bench.folder / "array.json"
    array.write_text(json.dumps([talk("a", "b")]))
    refused(array, "one JSON array")
    damaged = bench.folder / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    refused(damaged, "as Parquet")


def test_model_folders_that_lack_something(bench: Bench) -> None:
    model = bench.folder / "model"
    model.mkdir()
    shutil.copy(bench.model / "config.json", model)
    source = lines(bench.folder / "rows.jsonl", talk("a", "b"))
    with pytest.raises(InputError, match="no tokenizer"):
        prepare([source], str(model), bench.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bench.model / name, model)
    with pytest.raises(InputError, match="no chat template"):
        prepare([source], str(model), bench.out)
    assert not bench.out.exists()
    ids = lines(bench.folder / "ids.jsonl", {"input_ids": [1, 2], "loss_mask": [0, 1]})
    assert prepare([ids], str(model), bench.out).samples == 1
    with pytest.raises(InputError, match="does not exist"):
        prepare([source], str(bench.folder / "none"), bench.out)


@pytest.mark.parametrize("options", [{"max_length": 0}, {"eval_fraction": 1.5}])
def test_options_out_of_range(options: Row) -> None:
    with pytest.raises(InputError, match="expected"):
        PrepareOptions(**options)


def test_command(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    good = lines(bench.folder / "good.jsonl", talk("a", "b"))
    command([good], str(bench.model), str(bench.out), json=True)
    assert json.loads(capsys.readouterr().out)["samples"] == 1
    bad = lines(bench.folder / "bad.jsonl", talk("a", "b"), "no json")
    with pytest.raises(typer.Exit) as stopped:
        command([bad], str(bench.model), str(bench.out))
    assert stopped.value.exit_code == 1
    assert "prompts.rejects.jsonl" in capsys.readouterr().out


def test_no_source_is_ever_overwritten(bench: Bench) -> None:
    source = Path(lines(bench.folder / "rows.rejects.jsonl", talk("Hi", "Hello!")))
    before = source.read_bytes()
    roundabout = bench.folder / "x" / ".." / source.name
    for out in (source, roundabout, bench.folder / "rows.arrow"):
        with pytest.raises(InputError, match="is a source and would be overwritten"):
            prepare([str(source)], str(bench.model), out)
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("out", "message"),
    [("", "--out is empty"), ("file:///tmp/p.arrow", "name a path, not a URL"), (".", "a folder")],
)
def test_outputs_that_can_not_be(bench: Bench, out: str, message: str) -> None:
    source = lines(bench.folder / "rows.jsonl", talk("Hi", "Hello!"))
    with pytest.raises(InputError, match=message):
        prepare([source], str(bench.model), out)


def test_half_a_surrogate_pair_is_one_rejected_row(bench: Bench) -> None:
    half = json.dumps(talk("Hi", "a \ud800 b"))
    report = bench.run(talk("Hi", "Hello!"), half, {**talk("Bye", "Bye!"), "id": "\ud800"})
    assert (report.samples, report.rejected) == (1, 2)
    assert all("surrogate" in row["reason"] for row in rejects_of(bench.out))


def test_files_that_are_not_lines_of_json(bench: Bench) -> None:
    packed = bench.folder / "rows.jsonl.gz"
    packed.write_bytes(b"\x1f\x8b\x08\x00rest")
    pretty = bench.folder / "pretty.json"
    pretty.write_text(json.dumps(talk("Hi", "Hello!"), indent=2))
    for source, message in ((packed, "unpack it first"), (pretty, "one object a line")):
        with pytest.raises(InputError, match=message):
            prepare([str(source)], str(bench.model), bench.out)
