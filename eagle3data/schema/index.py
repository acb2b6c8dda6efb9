"""Arrow schemas of the index (one row a committed sample), the plan and the prompts file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.column_digest import columns_digest
from eagle3data.schema.digest import sequence_digest
from eagle3data.schema.errors import InputError

_TOKENS: list[pa.Field[Any]] = [
    pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
    pa.field("loss_mask", pa.list_(pa.bool_()), nullable=False),
]
_ORIGIN: list[pa.Field[Any]] = [
    pa.field("source", pa.string(), nullable=False),
    pa.field("split", pa.string()),
    pa.field("source_extra", pa.map_(pa.string(), pa.string())),
]

_INDEX: list[pa.Field[Any]] = [
    pa.field("sample_id", pa.string(), nullable=False),
    pa.field("token_offset", pa.int64(), nullable=False),
    pa.field("length", pa.int32(), nullable=False),
    *_TOKENS,
    pa.field("n_loss_tokens", pa.int32(), nullable=False),
    pa.field("tokens_crc32c", pa.uint32(), nullable=False),
    *_ORIGIN,
    pa.field("absmax", pa.list_(pa.float32()), nullable=False),
    pa.field("rms", pa.list_(pa.float32()), nullable=False),
    pa.field("min_row_rms", pa.list_(pa.float32()), nullable=False),
    pa.field("n_zero_rows", pa.list_(pa.int32()), nullable=False),
    pa.field("n_nan", pa.list_(pa.int64()), nullable=False),
    pa.field("n_inf", pa.list_(pa.int64()), nullable=False),
    pa.field("witness_token", pa.int32()),
    pa.field("witness_logprob", pa.float32()),
]
INDEX_SCHEMA = pa.schema(_INDEX)
"""Lists from `absmax` to `n_inf` have one entry a captured layer, ascending."""

TOKEN_COLUMNS = ("input_ids", "loss_mask")
"""The columns with a value a token; nearly all of the index's bytes."""

_PLAN: list[pa.Field[Any]] = [
    pa.field("sample_id", pa.string(), nullable=False),
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("token_offset", pa.int64(), nullable=False),
    pa.field("length", pa.int32(), nullable=False),
    pa.field("tokens_crc32c", pa.uint32(), nullable=False),
]
PLAN_SCHEMA = pa.schema(_PLAN)
"""Rows in token order; the metadata holds `digest`, `first_shard`, `shards`, `rows` (a digest)."""

_PROMPTS: list[pa.Field[Any]] = [
    pa.field("sample_id", pa.string(), nullable=False),
    *_TOKENS,
    *_ORIGIN,
]
PROMPTS_SCHEMA = pa.schema(_PROMPTS)
"""What `prepare` writes; the file's metadata holds `tokenizer` (JSON of `Tokenizer`), `model`."""


def plan_rows(
    axis: TokenAxis,
    sample_ids: Sequence[str],
    lengths: Sequence[int],
    checksums: Sequence[int],
    first_shard: int = 0,
) -> pa.Table:
    """`PLAN_SCHEMA` rows of samples laid out in order from the beginning of a shard."""
    offsets = axis.place(lengths, first_shard)
    shards = [axis.shard_of(offset) for offset in offsets]
    columns = [sample_ids, shards, offsets, lengths, checksums]
    return pa.table(dict(zip(PLAN_SCHEMA.names, columns, strict=True)), schema=PLAN_SCHEMA)


def plan_rows_digest(table: pa.Table) -> str:
    """ORDER-SENSITIVE digest of a plan segment's rows, for the segment itself."""
    return columns_digest(table.select(PLAN_SCHEMA.names))


def plan_digest(identity: str, table: pa.Table) -> str:
    """ORDER-SENSITIVE digest of a plan: the capture's identity, then each sample where it goes."""
    return sequence_digest([identity, plan_rows_digest(table)])


def rows_digest(table: pa.Table) -> str:
    """ORDER-SENSITIVE digest of index rows, every column of this version with its nulls."""
    return columns_digest(table.select(INDEX_SCHEMA.names))


def check_schema(found: pa.Schema, expected: pa.Schema, where: str) -> None:
    """Refuse a table without a column that version 1 has; unknown columns are ignored.

    Raises:
        InputError: a column is missing or of another type.
    """
    for field in expected:
        at = found.get_field_index(field.name)
        if at < 0:
            raise InputError(f"{where} has no column {field.name!r}; expected {field.type}.")
        if found.field(at).type != field.type:
            raise InputError(
                f"{where}: column {field.name!r} is {found.field(at).type}, expected {field.type}."
            )


def list_values(column: pa.ChunkedArray[Any], row: int) -> npt.NDArray[Any]:
    """One row of a list column as a numpy array."""
    return np.asarray(column[row].values.to_numpy(zero_copy_only=False))
