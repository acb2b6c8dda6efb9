"""Small data sets in other projects' layouts, written here by what their writers' sources say.

The peers' packages are not needed for it. Each function names the version whose writer the layout
was checked against; where the package installs, its own reader was run on the result.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save_file

HIDDEN, SLOTS, PAD = 8, 4, 0
LENGTHS = [5, 3, 9, 1, 4, 7, 2, 6, 8, 5, 3, 4]
"""More than ten, so that an order by name is another one."""


class Wanted:
    """One sample as its source was made: ids and mask `[T]`, states `[T, SLOTS, HIDDEN]`."""

    def __init__(self, row: int, dtype: torch.dtype = torch.bfloat16, hidden: int = HIDDEN) -> None:
        generator = torch.Generator().manual_seed(row)
        length = LENGTHS[row]
        self.ids = torch.randint(1, 400, (length,), generator=generator)
        self.mask = torch.randint(0, 2, (length,), generator=generator)
        shape = (length, SLOTS, hidden)
        self.states = torch.randn(shape, generator=generator).to(dtype)

    def slot(self, number: int) -> np.ndarray[Any, Any]:
        """`[T, H]` as a source gives it."""
        return bits(self.states[:, number])


def bits(states: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as numpy, bfloat16 by its bits."""
    if states.dtype == torch.bfloat16:
        states = states.contiguous().view(torch.uint16)
    return np.asarray(states.numpy())


def samples(dtype: torch.dtype = torch.bfloat16) -> list[Wanted]:
    """One for each of `LENGTHS`."""
    return [Wanted(row, dtype) for row in range(len(LENGTHS))]


def write_arrow(folder: Path, wanted: list[Wanted], files: int = 2) -> Path:
    """The data set that speculators 0.9.0's `prepare-data` saves with datasets 5.2."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = {
        "input_ids": pa.array([one.ids.tolist() for one in wanted], pa.list_(pa.int64())),
        "loss_mask": pa.array([one.mask.tolist() for one in wanted], pa.list_(pa.int64())),
        "seq_len": pa.array([len(one.ids) for one in wanted], pa.int64()),
    }
    table = pa.table(lists)
    cut = -(-len(wanted) // files)
    names = []
    for number in range(files):
        names.append(f"data-{number:05d}-of-{files:05d}.arrow")
        part = table.slice(number * cut, cut)
        path = str(folder / names[-1])
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_format_type": "torch"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write_speculators(folder: Path, wanted: list[Wanted], *, fp8: bool = False) -> Path:
    """`hs_*` files as vLLM's connector and hs_connectors 0.9.0 (fp8_utils.py) write them."""
    folder.mkdir(parents=True, exist_ok=True)
    for row, one in enumerate(wanted):
        tensors = {"hidden_states": one.states, "token_ids": one.ids}
        if fp8:
            values = one.states.float()
            scales = (values.abs().amax(dim=(1, 2), keepdim=True) / 448).clamp(min=1e-12)
            tensors["hidden_states"] = (values / scales).to(torch.float8_e4m3fn)
            tensors["hidden_states_scales"] = scales
        save_file(tensors, folder / f"hs_{row}.safetensors")
    return folder


def specforge_features(one: Wanted, padded_to: int = 0) -> dict[str, torch.Tensor]:
    """What SpecForge's prepare_hidden_states.py (f1424fb) keeps of a sample."""
    length = len(one.ids)
    longer = max(padded_to, length)
    ids = torch.full((longer,), PAD)
    mask = torch.zeros(longer, dtype=torch.long)
    states = torch.full((1, longer, SLOTS * HIDDEN), 7.0, dtype=one.states.dtype)
    ids[:length], mask[:length], states[0, :length] = one.ids, one.mask, one.states.flatten(1)
    aux, final = states[..., :-HIDDEN], states[..., -HIDDEN:]
    return {
        "input_ids": ids,
        "loss_mask": mask,
        "aux_hidden_state": aux.clone(),
        "hidden_state": final.clone(),
    }


def write_specforge(folder: Path, wanted: list[Wanted], *, padded_to: int = 0) -> Path:
    """Groups of ten files; every third is compressed."""
    for row, one in enumerate(wanted):
        group = folder / f"rows_{row // 10 * 10}-{row // 10 * 10 + 10}"
        group.mkdir(parents=True, exist_ok=True)
        save(specforge_features(one, padded_to), group / f"data_{row}.ckpt", packed=row % 3 == 2)
    return folder


def save(what: Any, path: Path, *, packed: bool = False) -> Path:
    """`torch.save`, or into a gzip with `.gz` after the name."""
    if not packed:
        torch.save(what, path)
        return path
    buffer = io.BytesIO()
    torch.save(what, buffer)
    path = path.with_name(path.name + ".gz")
    path.write_bytes(gzip.compress(buffer.getvalue(), 6))
    return path


def write_eagle(folder: Path, wanted: list[Wanted]) -> Path:
    """EAGLE's ge_data_all_vicuna.py (2320d52): two processes' folders, the last state alone."""
    for row, one in enumerate(wanted):
        part = folder / str(row // 11)
        part.mkdir(parents=True, exist_ok=True)
        tensors = {
            "input_ids": one.ids,
            "hidden_state": one.states[:, -1].clone(),
            "loss_mask": one.mask,
        }
        save(tensors, part / f"data_{row % 11}.ckpt")
    return folder


def write_deepspec(
    folder: Path, wanted: list[Wanted], dtype: torch.dtype = torch.bfloat16, **changes: Any
) -> Path:
    """Two shards, index and manifest as DeepSpec's target_cache_dataset.py (4351696) lays them."""
    folder.mkdir(parents=True, exist_ok=True)
    shards, index = [b"", b""], b""
    for row, one in enumerate(wanted):
        shard = row // 7
        states = one.states.to(dtype)
        aux, last = states[:, :-1].flatten(1), states[:, -1]
        arrays = [
            one.ids.to(torch.int32),
            torch.ones(len(one.ids), dtype=torch.uint8),
            one.mask.to(torch.uint8),
            aux.contiguous().view(torch.uint8),
            last.contiguous().view(torch.uint8),
        ]
        offsets = []
        for array in arrays:
            offsets.append(len(shards[shard]))
            shards[shard] += array.numpy().tobytes()
        index += struct.pack("<QIIQQQQQ", row, shard, len(one.ids), *offsets)
    names = [f"shard-{number:05d}.bin" for number in range(2)]
    for name, data in zip(names, shards, strict=True):
        (folder / name).write_bytes(data)
    (folder / "samples.idx").write_bytes(index)
    manifest = {
        "version": 2,
        "num_samples": len(wanted),
        "num_shards": 2,
        "target_layer_ids": [-1, 4, 8],
        "hidden_dtype": str(dtype).removeprefix("torch."),
        "token_dtype": "int32",
        "mask_dtype": "uint8",
        "index_record_size": 56,
        "hidden_size": HIDDEN,
        "shards": [{"shard_id": number, "file_name": name} for number, name in enumerate(names)],
        "target_model_name_or_path": "org/target",
        **changes,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def modelopt_dump(one: Wanted, conversation: object, **more: Any) -> dict[str, Any]:
    """A dict of Model-Optimizer's compute_hidden_states_vllm.py (a8c67e8)."""
    return {
        "input_ids": one.ids,
        "hidden_states": one.states[:, -1].clone(),
        "aux_hidden_states": one.states[:, :-1].flatten(1),
        "loss_mask": one.mask,
        "conversation_id": conversation,
        **more,
    }


def write_modelopt(folder: Path, wanted: list[Wanted], **more: Any) -> Path:
    """A file a conversation, in two folders as of two tasks."""
    for row, one in enumerate(wanted):
        part = folder / f"dp{row // 11}"
        part.mkdir(parents=True, exist_ok=True)
        save(modelopt_dump(one, row, **more), part / f"{row}.pt")
    return folder


def torchspec_batch(wanted: list[Wanted]) -> dict[str, Any]:
    """A batch as TorchSpec's DataCollatorWithPadding (1098e20) collates it."""
    size = 256

    def filled(arrays: list[torch.Tensor]) -> torch.Tensor:
        batch = torch.zeros(len(arrays), size, *arrays[0].shape[1:], dtype=arrays[0].dtype)
        for row, array in enumerate(arrays):
            batch[row, : len(array)] = array
        return batch

    return {
        "input_ids": filled([one.ids for one in wanted]),
        "attention_mask": filled([torch.ones_like(one.ids) for one in wanted]),
        "loss_mask": filled([one.mask for one in wanted]),
        "hidden_states": filled([one.states[:, :-1].flatten(1) for one in wanted]),
        "target": None,
        "last_hidden_states": filled([one.states[:, -1] for one in wanted]),
    }


def write_torchspec(folder: Path, wanted: list[Wanted]) -> Path:
    """Two ranks' caches, the first of batches of two."""
    folder.mkdir(parents=True, exist_ok=True)
    first, second = wanted[:6], wanted[6:]
    pairs = [torchspec_batch(first[at : at + 2]) for at in range(0, 6, 2)]
    save(pairs, folder / "eval_rank_0.pt")
    save([torchspec_batch([one]) for one in second], folder / "eval_rank_1.pt")
    return folder
