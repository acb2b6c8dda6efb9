"""Checks on the index rows alone: lengths, places, tokens, masks and per-layer statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.manifest import Manifest, StorageDtype
from eagle3data.validation.findings import REPAIR, Finding, Severity

FLOAT16_MAX = 65_504.0


def check_rows(table: pa.Table, manifest: Manifest) -> list[Finding]:
    """Everything that the rows of one or all index parts show by themselves.

    Args:
        table: `INDEX_SCHEMA` rows, in any order.
        manifest: of the data set.
    """
    if not table.num_rows:
        return []
    rows = Rows(table, manifest)
    return [
        *_lengths(rows),
        *_places(rows),
        *_duplicates(rows),
        *_tokens(rows),
        *_masks(rows),
        *_statistics(rows),
    ]


class Rows:
    """Index rows as numpy arrays, sorted by where they lie."""

    def __init__(self, table: pa.Table, manifest: Manifest) -> None:
        self.manifest = manifest
        offsets = table["token_offset"].to_numpy()
        in_order = bool(np.all(offsets[1:] >= offsets[:-1]))
        self.table = (table if in_order else table.sort_by("token_offset")).combine_chunks()
        self.sample_ids = [str(name) for name in self.table["sample_id"].to_pylist()]
        self.offsets: npt.NDArray[np.int64] = self.table["token_offset"].to_numpy()
        self.lengths: npt.NDArray[np.int64] = self.table["length"].to_numpy().astype(np.int64)
        axis = manifest.storage.axis
        self.shards: npt.NDArray[np.int64] = self.offsets // axis.shard_tokens
        self.ends: npt.NDArray[np.int64] = self.offsets + -(-self.lengths // axis.chunk_tokens) * (
            axis.chunk_tokens
        )

    def __len__(self) -> int:
        return len(self.sample_ids)

    def lists(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """A list column as its row bounds `[rows + 1]` and its flat values."""
        column: Any = self.table[name].chunk(0)
        values = column.values.to_numpy(zero_copy_only=False)
        return column.offsets.to_numpy(), values

    def finding(self, row: int, kind: str, detail: str, **more: Any) -> Finding:
        return Finding(
            kind=kind,
            detail=detail,
            sample_id=self.sample_ids[row],
            shard=int(self.shards[row]),
            **{"advice": REPAIR, **more},
        )


def _where(condition: npt.NDArray[np.bool_]) -> list[int]:
    return [int(row) for row in np.flatnonzero(condition)]


def _lengths(rows: Rows) -> Iterator[Finding]:
    for name in ("input_ids", "loss_mask"):
        bounds, _ = rows.lists(name)
        sizes = np.diff(bounds)
        for row in _where(sizes != rows.lengths):
            yield rows.finding(
                row,
                "length_mismatch",
                f"the index gives it {rows.lengths[row]} tokens but lists {sizes[row]} {name}.",
            )
    for row in _where(rows.lengths < 1):
        yield rows.finding(row, "length_mismatch", f"its length is {rows.lengths[row]}.")


def _places(rows: Rows) -> Iterator[Finding]:
    axis = rows.manifest.storage.axis
    for row in _where((rows.offsets % axis.chunk_tokens != 0) | (rows.offsets < 0)):
        yield rows.finding(
            row,
            "index_overlap",
            f"it starts at token {rows.offsets[row]}, inside a chunk of {axis.chunk_tokens}.",
        )
    for row in _where((rows.ends - 1) // axis.shard_tokens != rows.shards):
        yield rows.finding(
            row,
            "length_mismatch",
            f"its {rows.lengths[row]} tokens from {rows.offsets[row]} on run past the end of the "
            f"shard at {(rows.shards[row] + 1) * axis.shard_tokens}; no object holds them.",
        )
    for row in _where(np.append(False, rows.offsets[1:] < rows.ends[:-1])):
        yield rows.finding(
            row,
            "index_overlap",
            f"it starts at token {rows.offsets[row]}, where sample {rows.sample_ids[row - 1]} "
            f"still lies (until {rows.ends[row - 1]}).",
        )


def _duplicates(rows: Rows) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for row, sample_id in enumerate(rows.sample_ids):
        earlier = first.setdefault(sample_id, row)
        if earlier != row:
            yield rows.finding(
                row,
                "duplicate_sample",
                f"the index holds it twice: at token {rows.offsets[earlier]} and at "
                f"{rows.offsets[row]}.",
            )


def _tokens(rows: Rows) -> Iterator[Finding]:
    bounds, ids = rows.lists("input_ids")
    expected = rows.table["tokens_crc32c"].to_numpy()
    vocabulary = rows.manifest.target.vocab_size
    for row in range(len(rows)):
        own = ids[bounds[row] : bounds[row + 1]]
        found = tokens_crc32c(own)
        if found != expected[row]:
            yield rows.finding(
                row,
                "tokens_differ",
                f"the index's token ids have CRC32C {found:08x}, it was written with "
                f"{expected[row]:08x}.",
            )
        if len(own) and not 0 <= int(own.min()) <= int(own.max()) < vocabulary:
            yield rows.finding(
                row,
                "tokens_invalid",
                f"token ids from {own.min()} to {own.max()}, in a vocabulary of {vocabulary}.",
            )


def _masks(rows: Rows) -> Iterator[Finding]:
    bounds, mask = rows.lists("loss_mask")
    sums = np.add.reduceat(np.append(mask.astype(np.int64), 0), bounds[:-1])
    sums[np.diff(bounds) == 0] = 0
    stated = rows.table["n_loss_tokens"].to_numpy()
    for row in _where(sums != stated):
        yield rows.finding(
            row,
            "tokens_differ",
            f"the index says {stated[row]} loss tokens, its mask has {sums[row]}.",
        )
    for row in _where(sums == 0):
        yield rows.finding(
            row,
            "mask_empty",
            "its loss mask is all zero: nothing is learnt from it.",
            expected="1 on the assistant's tokens",
            advice="Check truncation and the chat template in `prepare`.",
        )
    # A chat template always adds tokens that are not the assistant's; plain text has none.
    if rows.manifest.tokenizer.chat_template_digest is not None:
        for row in _where((sums == rows.lengths) & (rows.lengths > 1)):
            yield rows.finding(
                row,
                "mask_empty",
                "its loss mask is all one, though the set was made with a chat template: the "
                "prompt is trained on too.",
                severity=Severity.WARNING,
                expected="1 on the assistant's tokens only",
                advice="If the source was plain text this is right; else check `prepare`.",
            )


def _statistics(rows: Rows) -> Iterator[Finding]:
    layers = rows.manifest.layers
    counts = {}
    for name in ("n_nan", "n_inf", "n_zero_rows", "absmax", "rms"):
        bounds, values = rows.lists(name)
        bad = _where(np.diff(bounds) != len(layers))
        for row in bad:
            yield rows.finding(
                row,
                "length_mismatch",
                f"the index has {bounds[row + 1] - bounds[row]} values of {name}, "
                f"one for each of the layers {layers} was expected.",
            )
        if len(bad):
            return
        counts[name] = values[bounds[0] : bounds[-1]].reshape(len(rows), len(layers))
    for column, layer in enumerate(layers):
        yield from _layer_statistics(rows, layer, {k: v[:, column] for k, v in counts.items()})


def _layer_statistics(
    rows: Rows, layer: int, values: dict[str, npt.NDArray[Any]]
) -> Iterator[Finding]:
    broken = ~np.isfinite(values["rms"]) | ~np.isfinite(values["absmax"])
    for row in _where((values["n_nan"] > 0) | broken):
        detail = f"{values['n_nan'][row]} NaN values."
        yield rows.finding(row, "nonfinite", detail, layer=layer)
    for row in _where(values["n_inf"] > 0):
        yield rows.finding(
            row,
            "saturated",
            f"{values['n_inf'][row]} infinite values: more than float16's 65,504 was cast.",
            layer=layer,
            advice="Extract again with --dtype bfloat16.",
        )
    for row in _where((values["n_zero_rows"] > 0) | (values["rms"] == 0)):
        zero = max(int(values["n_zero_rows"][row]), 1)
        yield rows.finding(
            row,
            "all_zero",
            f"{zero} of {rows.lengths[row]} rows are all zero; a real state never is.",
            layer=layer,
        )
    if rows.manifest.storage.dtype is StorageDtype.FLOAT16:
        for row in _where(values["absmax"] == FLOAT16_MAX):
            yield rows.finding(
                row,
                "saturated",
                "its largest value is exactly float16's limit: it may have been clamped there.",
                layer=layer,
                severity=Severity.WARNING,
                advice="Extract again with --dtype bfloat16.",
            )
