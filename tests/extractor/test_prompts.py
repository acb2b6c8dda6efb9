"""The prompts file: what is written is read back, and other files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eagle3data.extractor.prompts import prompts_metadata, prompts_writer, read_prompts
from eagle3data.schema.errors import InputError
from eagle3data.schema.index import PROMPTS_SCHEMA
from eagle3data.schema.manifest import Tokenizer

TOKENIZER = Tokenizer(digest="sha256:1", chat_template_digest=None)
METADATA = prompts_metadata("models/tiny", TOKENIZER, 64)
ROWS: list[dict[str, Any]] = [
    {
        "input_ids": [1, 2, 3],
        "loss_mask": [False, False, True],
        "source": "a.jsonl:1",
        "split": "train",
    },
    {"input_ids": [4, 5], "loss_mask": [False, True], "source": "a.jsonl:2", "split": "eval"},
]


def _table(rows: list[dict[str, Any]], metadata: dict[str, str]) -> pa.Table:
    named = [{**row, "sample_id": f"s{n}", "source_extra": []} for n, row in enumerate(rows)]
    return pa.Table.from_pylist(named, schema=PROMPTS_SCHEMA.with_metadata(metadata))


def _write(path: Path, table: pa.Table) -> None:
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    with prompts_writer(path, metadata) as writer:
        writer.write_table(table)


def test_round_trip(tmp_path: Path) -> None:
    table = _table(ROWS, METADATA)
    _write(tmp_path / "p.arrow", table)
    prompts = read_prompts(tmp_path / "p.arrow")
    assert prompts.table.equals(table)
    assert (prompts.model, prompts.tokenizer, prompts.max_length) == ("models/tiny", TOKENIZER, 64)
    assert prompts.lengths.tolist() == [3, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["p.arrow"]


def test_no_limit(tmp_path: Path) -> None:
    _write(tmp_path / "p", _table(ROWS, prompts_metadata("m", TOKENIZER, None)))
    assert read_prompts(tmp_path / "p").max_length is None


def test_digest_sees_order_split_and_tokenizer_but_not_the_place(tmp_path: Path) -> None:
    def digest(name: str, rows: list[dict[str, Any]], metadata: dict[str, str]) -> str:
        _write(tmp_path / name, _table(rows, metadata))
        return read_prompts(tmp_path / name).digest

    first = digest("a", list(ROWS), METADATA)
    moved = [{**row, "source": "elsewhere:9"} for row in ROWS]
    assert digest("b", moved, prompts_metadata("other/name", TOKENIZER, None)) == first
    other = Tokenizer(digest="sha256:2", chat_template_digest=None)
    assert digest("c", ROWS[::-1], METADATA) != first
    assert digest("d", [{**ROWS[0], "split": "eval"}, ROWS[1]], METADATA) != first
    assert digest("e", list(ROWS), prompts_metadata("m", other, None)) != first


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "p.arrow"
    _write(path, _table(ROWS, METADATA))
    with pytest.raises(KeyError), prompts_writer(path, METADATA):
        raise KeyError
    assert len(read_prompts(path)) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.arrow"]


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        _write(tmp_path / "file" / "p.arrow", _table(ROWS, METADATA))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_prompts(tmp_path / "none.arrow")
    text = tmp_path / "text.arrow"
    text.write_text('{"messages": []}\n')
    with pytest.raises(InputError, match="not a prompts file"):
        read_prompts(text)
    with pytest.raises(InputError, match="not a prompts file"):
        read_prompts(tmp_path)
    cut = tmp_path / "cut.arrow"
    _write(cut, _table(ROWS, METADATA))
    cut.write_bytes(cut.read_bytes()[:-40])
    with pytest.raises(InputError, match="not a prompts file"):
        read_prompts(cut)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.arrow"
    table = pa.table({"sample_id": ["a"]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match="no column 'input_ids'"):
        read_prompts(path)
    with prompts_writer(path, {}):
        pass
    with pytest.raises(InputError, match="does not say which model"):
        read_prompts(path)
    assert PROMPTS_SCHEMA.metadata is None
