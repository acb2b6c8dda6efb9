"""`validate --level quick`: seconds and memory for a set of many shards.

The set is synthetic and clean: true index parts, a plan and a gathered index, and objects of the
right sizes that hold nothing (sparse files), which this level does not read. Each check is a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.index import INDEX_SCHEMA, plan_rows, plan_rows_digest, rows_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import metadata_documents
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import consolidate_index

CHECK = """
import json, re, sys, time
start = time.perf_counter()
from eagle3data.validation.validate import validate
begin = time.perf_counter()
report = validate(sys.argv[1], "quick")
end = time.perf_counter()
status = open("/proc/self/status").read()
print(json.dumps({"verdict": report.verdict.value, "findings": len(report.findings),
                  "samples": report.checked.samples, "tokens": report.checked.tokens,
                  "import_s": round(begin - start, 2), "check_s": round(end - begin, 2),
                  "cpu_s": round(time.process_time(), 2),
                  "peak_MB": int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) // 1024}))
"""


def write_set(folder: Path, *, shards: int, samples: int, tokens: int) -> int:
    """A clean set whose objects are sparse; returns the bytes of states that it stands for."""
    axis = TokenAxis(shard_tokens=samples * -(-tokens // 128) * 128, chunk_tokens=128)
    manifest = Manifest.synthetic(
        hidden_size=7168, num_hidden_layers=61, vocab_size=163_840, axis=axis
    )
    for name, document in metadata_documents(manifest, shards).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document)
    (folder / "index").mkdir()
    (folder / "plan").mkdir()
    ids = np.random.default_rng(0).integers(0, 163_840, tokens).astype(np.int32)
    table = _rows(manifest, ids, samples)
    names = [f"{number:016x}" for number in range(shards * samples)]
    whole = axis.shard_tokens * manifest.hidden_size * 2
    sizes = {
        array: whole if layout.layer_of(array) is not None else axis.shard_tokens
        for array in layout.array_names(manifest)
    }
    for array in sizes:
        (folder / layout.shard_object(array, 0)).parent.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        objects = []
        for array, size in sizes.items():
            path = folder / layout.shard_object(array, shard)
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                file.truncate(size)
            objects.append({"path": layout.shard_object(array, shard), "bytes": size})
        own = names[shard * samples : (shard + 1) * samples]
        first = shard * axis.shard_tokens
        offsets = range(first, first + axis.shard_tokens, axis.aligned(tokens))
        table = table.set_column(0, INDEX_SCHEMA.field(0), pa.array(own))
        table = table.set_column(1, INDEX_SCHEMA.field(1), pa.array(offsets, pa.int64()))
        facts = {"shard": shard, "objects": objects, "rows": rows_digest(table)}
        (folder / layout.index_part(shard)).write_bytes(layout.encode_table(table, facts))
    count = shards * samples
    plan = plan_rows(axis, names, [tokens] * count, [tokens_crc32c(ids)] * count, 0)
    facts = {"first_shard": 0, "shards": shards, "rows": plan_rows_digest(plan)}
    (folder / layout.plan_segment(0)).write_bytes(layout.encode_table(plan, facts))
    consolidate_index(Root(str(folder)))
    return shards * whole * len(manifest.layers)


def _rows(
    manifest: Manifest, ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]], samples: int
) -> pa.Table:
    layers = len(manifest.layers)
    row = {
        "sample_id": "",
        "token_offset": 0,
        "length": len(ids),
        "input_ids": ids,
        "loss_mask": np.arange(len(ids)) >= len(ids) // 2,
        "n_loss_tokens": len(ids) - len(ids) // 2,
        "tokens_crc32c": tokens_crc32c(ids),
        "source": "conversations.jsonl:1",
        "split": "train",
        "source_extra": [("topic", "benchmark")],
        "absmax": [100.0] * layers,
        "rms": [1.0] * layers,
        "min_row_rms": [0.5] * layers,
        "n_zero_rows": [0] * layers,
        "n_nan": [0] * layers,
        "n_inf": [0] * layers,
        "witness_token": 1,
        "witness_logprob": -1.0,
    }
    return pa.Table.from_pylist([row] * samples, schema=INDEX_SCHEMA)


def checked(url: str) -> dict[str, float | str]:
    """Check it in a fresh process and return what that process saw."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK, url], capture_output=True, text=True, check=True
    )
    found: dict[str, float | str] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write one set, unless it is there, and check it a few times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=1, help="of each shard")
    parser.add_argument("--tokens", type=int, default=1700, help="of each sample")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not options.folder.exists():
        begin = time.perf_counter()
        nbytes = write_set(
            options.folder, shards=options.shards, samples=options.samples, tokens=options.tokens
        )
        print(
            f"{options.shards:,} shards that stand for {nbytes / 1e12:.2f} TB, written in "
            f"{time.perf_counter() - begin:.0f} s, {os.cpu_count()} cores"
        )
    for _ in range(options.rounds):
        print(checked(str(options.folder)), flush=True)


if __name__ == "__main__":
    main()
