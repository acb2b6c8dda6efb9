"""Digests of rows: the same however they are chunked, another for any change."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from eagle3data.schema.index import INDEX_SCHEMA, PLAN_SCHEMA, plan_digest, rows_digest

Row = dict[str, Any]


def _row(number: int) -> Row:
    layers = 3
    return {
        "sample_id": f"s{number}",
        "token_offset": 32 * number,
        "length": number % 4,
        "input_ids": list(range(number % 4)),
        "loss_mask": [bool(token % 2) for token in range(number % 4)],
        "n_loss_tokens": number % 2,
        "tokens_crc32c": 4_000_000_000 + number,
        "source": f"file.jsonl:{number}",
        "split": "train" if number % 3 else None,
        "source_extra": [("topic", "tea"), ("page", str(number))] if number % 2 else None,
        "absmax": [1.5] * layers,
        "rms": [0.5] * layers,
        "min_row_rms": [0.25] * layers,
        "n_zero_rows": [0] * layers,
        "n_nan": [0] * layers,
        "n_inf": [0] * layers,
        "witness_token": number if number % 2 else None,
        "witness_logprob": -0.5,
    }


ROWS = [_row(number) for number in range(12)]


def _table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=INDEX_SCHEMA)


@pytest.mark.parametrize("cuts", [(1, 2), (0, 5), (4, 4), (11, 12)])
def test_chunks_and_slices_do_not_matter(cuts: tuple[int, int]) -> None:
    table = _table(ROWS)
    first, second = cuts
    chunked = pa.concat_tables(
        [table.slice(0, first), table.slice(first, second - first), table.slice(second)]
    )
    assert rows_digest(chunked) == rows_digest(table)
    assert rows_digest(chunked.combine_chunks()) == rows_digest(table)
    longer = _table([_row(99), *ROWS, _row(98)])
    assert rows_digest(longer.slice(1, len(ROWS))) == rows_digest(table)
    reordered = table.select(list(reversed(table.column_names)))
    assert rows_digest(reordered) == rows_digest(table)


def test_no_rows() -> None:
    empty = INDEX_SCHEMA.empty_table()
    assert rows_digest(empty) == rows_digest(_table([])) == rows_digest(_table(ROWS).slice(3, 0))
    assert rows_digest(empty) != rows_digest(_table(ROWS))


@pytest.mark.parametrize("row", [1, 4])
@pytest.mark.parametrize(
    "change",
    [
        {"sample_id": "other"},
        {"token_offset": 7},
        {"input_ids": [0, 9]},
        {"loss_mask": [True]},
        {"tokens_crc32c": 1},
        {"split": "eval"},
        {"split": ""},
        {"source_extra": []},
        {"source_extra": [("topic", "coffee")]},
        {"absmax": [1.5, 1.5, 1.25]},
        {"n_nan": [0, 1, 0]},
        {"witness_token": 12},
        {"witness_logprob": None},
        {"witness_logprob": 0.0},
    ],
)
def test_any_change_shows(row: int, change: Row) -> None:
    changed = [{**old, **change} if number == row else old for number, old in enumerate(ROWS)]
    assert rows_digest(_table(changed)) != rows_digest(_table(ROWS))


def test_order_and_borders_show() -> None:
    whole = rows_digest(_table(ROWS))
    assert rows_digest(_table([ROWS[1], ROWS[0], *ROWS[2:]])) != whole
    assert rows_digest(_table(ROWS[:-1])) != whole
    moved = [{**ROWS[3], "input_ids": [0, 1]}, {**ROWS[4], "input_ids": [2]}]
    other = [{**ROWS[3], "input_ids": [0]}, {**ROWS[4], "input_ids": [1, 2]}]
    assert rows_digest(_table(moved)) != rows_digest(_table(other))
    named = [{**ROWS[3], "sample_id": "ab"}, {**ROWS[4], "sample_id": "c"}]
    split = [{**ROWS[3], "sample_id": "a"}, {**ROWS[4], "sample_id": "bc"}]
    assert rows_digest(_table(named)) != rows_digest(_table(split))
    null_first = [{**ROWS[3], "split": None}, {**ROWS[4], "split": "train"}]
    null_last = [{**ROWS[3], "split": "train"}, {**ROWS[4], "split": None}]
    assert rows_digest(_table(null_first)) != rows_digest(_table(null_last))


def test_a_plan_knows_its_order_and_identity() -> None:
    plan = pa.Table.from_pylist(
        [{**row, "shard": 0} for row in ROWS], schema=pa.schema(list(PLAN_SCHEMA))
    )
    digest = plan_digest("capture", plan)
    assert plan_digest("capture", pa.concat_tables([plan.slice(0, 5), plan.slice(5)])) == digest
    assert plan_digest("another", plan) != digest
    assert plan_digest("capture", plan.take([1, 0, *range(2, 12)])) != digest
