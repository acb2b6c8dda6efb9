"""A data set written as speculators 0.9 trains from it: the inverse of `interop.speculators`.

`folder` becomes their `--data-path`: the Arrow data set, `token_freq.pt` (how often each token is
trained on, which their draft vocabulary is chosen by) and `hidden_states/hs_{row}.safetensors`.
Samples of `train` come first (`interop.training_order`), since their trainer holds out the last
rows. It takes the last slot for the final layer before its norm, so a set without one is refused.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3data.interop.exporting import (
    ExportedSet,
    Progress,
    begin,
    buffer_of,
    put,
    write_missing,
)
from eagle3data.interop.training_order import TrainingOrder
from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState
from eagle3data.schema.manifest import Manifest, StorageDtype
from eagle3data.schema.sample import Sample
from eagle3data.storage.local import Buffer

LAYOUT = "speculators"
ORDER = "train first"
"""How rows follow each other, as the marker in the folder says it."""
_ARROW = "data-{:05d}-of-{:05d}.arrow"
_ROWS = 20_000
"""Rows an Arrow file; at 2,048 tokens about 650 MB."""
_DTYPES = {StorageDtype.FLOAT16: "F16", StorageDtype.BFLOAT16: "BF16"}
_SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int64()),
        "loss_mask": pa.list_(pa.int64()),
        "seq_len": pa.int64(),
    }
)


def write(
    dataset: ExportedSet,
    folder: Path,
    *,
    states: bool = True,
    threads: int = 4,
    progress: Progress | None = None,
) -> int:
    """Write what is not written yet.

    Args:
        dataset: to export; its final layer kept before the norm.
        folder: empty, or of this export when it was stopped.
        states: with the states; without them their trainer reads those from the set itself,
            through `interop.speculators_backend`.
        threads: that read and write.
        progress: told the samples that are done.

    Returns:
        Files of states that were written now.

    Raises:
        InputError: the set has no final layer before its norm, or the folder is another's.
        CorruptionError: a sample of the set is damaged.
        SpaceError: the place is full.
    """
    rows = TrainingOrder(dataset)
    check_final_layer(dataset.manifest)
    begin(rows, folder, LAYOUT, ORDER)
    if not (folder / "state.json").exists():
        _write_rows(rows, folder)
    if not states:
        return 0
    dtype = _DTYPES[dataset.manifest.storage.dtype]
    return write_missing(
        rows,
        folder,
        lambda row: f"hidden_states/hs_{row}.safetensors",
        lambda sample: _encoded(sample, dtype),
        threads=threads,
        progress=progress,
    )


def check_final_layer(manifest: Manifest) -> None:
    """Whether speculators can train on a set.

    Raises:
        InputError: it has no final layer, or has it after the norm.
    """
    if manifest.layers[-1] != manifest.final_layer:
        raise InputError(
            f"the set keeps layers {manifest.layers}; speculators needs the final one, "
            f"{manifest.final_layer}, as the last. Extract it with that layer."
        )
    if manifest.capture.norm_state is not NormState.PRE:
        raise InputError(
            "the set keeps the final layer after its norm, which can't be undone; speculators "
            "applies the norm itself. Extract the set from the model instead."
        )


def _encoded(sample: Sample, dtype: str) -> Sequence[Buffer]:
    states = np.stack([sample.hidden_states[layer] for layer in sorted(sample.hidden_states)], 1)
    arrays = {
        "hidden_states": (dtype, states),  # [T, slots, H]
        "token_ids": ("I64", sample.input_ids.astype("<i8")),  # [T]
    }
    header: dict[str, Any] = {}
    end = 0
    for name, (stored, array) in arrays.items():
        offsets = [end, end + array.nbytes]
        header[name] = {"dtype": stored, "shape": list(array.shape), "data_offsets": offsets}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    return [
        len(text).to_bytes(8, "little"),
        text,
        *(buffer_of(array) for _, array in arrays.values()),
    ]


def _write_rows(dataset: TrainingOrder, folder: Path) -> None:
    """The Arrow data set; `state.json` comes last and makes it one.

    Tokens are counted in the rows that are trained on: a draft vocabulary chosen with the help of
    held-out ones would look better on those than it is.
    """
    counted = dataset.trained or len(dataset)
    counts = np.zeros(dataset.manifest.target.vocab_size, np.int64)
    every = range(len(dataset))
    parts = [every[start : start + _ROWS] for start in every[::_ROWS]]
    names = [_ARROW.format(number, len(parts)) for number in range(len(parts))]
    for name, rows in zip(names, parts, strict=True):
        # Read even where the file is there: the counts need its tokens.
        table = _table(dataset, rows, counts, counted)
        if not (folder / name).exists():
            put(folder, name, [_stream(table)])
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": dataset.generation.removeprefix("sha256:")[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }
    ids = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
    length = {"dtype": "int64", "_type": "Value"}
    features = {"input_ids": ids, "loss_mask": ids, "seq_len": length}
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    documents = {
        "token_freq.pt": _frequencies(counts),
        "dataset_info.json": json.dumps(info, indent=2).encode(),
        "state.json": json.dumps(state, indent=2).encode(),
    }
    for name, data in documents.items():
        if not (folder / name).exists():
            put(folder, name, [data])


def _table(
    dataset: ExportedSet, rows: Sequence[int], counts: npt.NDArray[np.int64], counted: int
) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for row in rows:
        ids, mask = dataset.read_tokens(row)
        columns["input_ids"].append(ids.astype(np.int64))
        columns["loss_mask"].append(mask.astype(np.int64))
        columns["seq_len"].append(len(ids))
        if row < counted:
            np.add.at(counts, ids[mask == 1], 1)
    return pa.table(columns, schema=_SCHEMA)


def _stream(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=1000)
    return memoryview(sink.getvalue())


def _frequencies(counts: npt.NDArray[np.int64]) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save({int(token): int(counts[token]) for token in np.flatnonzero(counts)}, buffer)
    return buffer.getvalue()
