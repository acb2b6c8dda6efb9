"""Opening a data set: seconds, memory and requests, for index parts without any shards.

Parts are synthetic; each opening is a process of its own, the page cache warm.
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
from eagle3data.schema.index import INDEX_SCHEMA, rows_digest
from eagle3data.schema.manifest import Manifest
from eagle3data.storage import layout
from eagle3data.storage.arrays import metadata_documents
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import consolidate_index

OPEN = """
import json, re, sys, time
start = time.perf_counter()
import eagle3data.readers.dataset
imported = time.perf_counter()
dataset = eagle3data.open_dataset(sys.argv[1])
opened = time.perf_counter()
status = open("/proc/self/status").read()
megabytes = {name: int(re.search(name + r":\\s+(\\d+)", status)[1]) // 1024
             for name in ("VmRSS", "RssAnon", "RssFile", "VmHWM")}
row = dataset.position(dataset.index["sample_id"][len(dataset) - 1].as_py())
print(json.dumps({"rows": len(dataset), "import_s": round(imported - start, 3),
                  "open_s": round(opened - imported, 3), **megabytes,
                  "position_ms": round(1e3 * (time.perf_counter() - opened), 2)}))
"""


def write_parts(folder: Path, *, parts: int, samples: int, tokens: int) -> None:
    """A set's metadata and its index parts, `samples` rows of `tokens` tokens in each."""
    axis = TokenAxis(shard_tokens=samples * -(-tokens // 16) * 16, chunk_tokens=16)
    manifest = Manifest.synthetic(
        hidden_size=7168, num_hidden_layers=61, vocab_size=163_840, axis=axis
    )
    for name, document in metadata_documents(manifest, parts).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document)
    (folder / "index").mkdir()
    table = _rows(samples, tokens)
    step = axis.aligned(tokens)
    for shard in range(parts):
        first = shard * axis.shard_tokens
        names = pa.array([f"{shard * samples + row:016x}" for row in range(samples)])
        offsets = pa.array(range(first, first + samples * step, step), pa.int64())
        table = table.set_column(0, INDEX_SCHEMA.field(0), names)
        table = table.set_column(1, INDEX_SCHEMA.field(1), offsets)
        facts = {"shard": shard, "objects": [], "rows": rows_digest(table)}
        (folder / layout.index_part(shard)).write_bytes(layout.encode_table(table, facts))


def _rows(samples: int, tokens: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.Table.from_pylist(
        [
            {
                "sample_id": "",
                "token_offset": 0,
                "length": tokens,
                "input_ids": rng.integers(0, 163_840, tokens),
                "loss_mask": rng.integers(0, 2, tokens).astype(bool),
                "n_loss_tokens": tokens // 2,
                "tokens_crc32c": row,
                "source": f"conversations.jsonl:{row}",
                "split": "train",
                "source_extra": [("topic", "benchmark")],
                "absmax": [1.0] * 4,
                "rms": [1.0] * 4,
                "min_row_rms": [1.0] * 4,
                "n_zero_rows": [0] * 4,
                "n_nan": [0] * 4,
                "n_inf": [0] * 4,
                "witness_token": row,
                "witness_logprob": -1.0,
            }
            for row in range(samples)
        ],
        schema=INDEX_SCHEMA,
    )


def opened(url: str) -> dict[str, float]:
    """Open it in a fresh process and return what that process saw."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, url], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write one set, gather its index, open it three times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=1700)
    options = parser.parse_args()
    if not options.folder.exists():
        begin = time.perf_counter()
        write_parts(
            options.folder, parts=options.parts, samples=options.samples, tokens=options.tokens
        )
        print(f"{options.parts:,} parts written in {time.perf_counter() - begin:.1f} s")
    url = str(options.folder)
    if len(layout.committed_shards(Root(url))) <= 1000:
        (options.folder / layout.ALL_PARTS).unlink(missing_ok=True)
        print("parts only ", opened(url))
    begin = time.perf_counter()
    consolidate_index(Root(url))
    size = os.path.getsize(options.folder / layout.ALL_PARTS)
    taken = time.perf_counter() - begin
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(f"gathered in {taken:.1f} s: {size / 1e6:,.0f} MB, peak {int(peak) // 1024} MB")
    for _ in range(3):
        print("all.arrow  ", opened(url))


if __name__ == "__main__":
    main()
