"""A loader's first batch and its seeks: seconds from construction, for 10,000 and 1,000,000 rows.

The set has the lengths of conversations, cut to a third; all its shards are links to one, so that a
million rows cost an index and no states. Each figure is of a process of its own, page cache warm.
Padding and the ranks' balance are those of the same lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data import DatasetWriter, Manifest, Sample
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.index import INDEX_SCHEMA, rows_digest
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import consolidate_index

LENGTHS = Path(__file__).parent.parent / "tests" / "data" / "conversation_lengths.json"
BUDGET, HIDDEN, LAYERS, SHARD_TOKENS = 8192, 16, [2, 12], 1 << 16

MEASURE = """
import json, sys, time
import eagle3data as e3
from eagle3data.readers.loader import StreamingLoader
url, what, ranks, state = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
row, last = {}, [time.perf_counter(), time.process_time()]
def took(name):
    now = [time.perf_counter(), time.process_time()]
    row[name] = [now[0] - last[0], now[1] - last[1]]
    last[:] = now
dataset = e3.open_dataset(url)
took("open")
loader = StreamingLoader(dataset, token_budget=8192, rank=0, world_size=ranks)
took("construct")
if state:
    loader.load_state_dict(state)
took("seek")
next(iter(loader))
took("first batch")
if what == "whole":
    packs = loader.packs
    took("whole plan")
    tokens = [sum(loader.documents.length(one) for one in pack) for pack in packs]
    of_ranks = [sum(tokens[rank::8]) for rank in range(8)]
    row["padding"] = 1 - sum(tokens) / (len(packs) * 8192)
    row["balance"] = max(of_ranks) / (sum(of_ranks) / 8) - 1
    row["state"] = {**loader.state_dict(), "consumed": len(packs) // 2}
print(json.dumps(row))
"""


def write_set(folder: Path, rows: int) -> None:
    """A set of so many rows or a few more, every shard the first one again."""
    manifest = Manifest.synthetic(
        hidden_size=HIDDEN,
        num_hidden_layers=12,
        vocab_size=1000,
        layers=LAYERS,
        axis=TokenAxis(shard_tokens=SHARD_TOKENS, chunk_tokens=16),
    )
    rng = np.random.default_rng(0)
    lengths = np.array(json.loads(LENGTHS.read_text())) // 3
    with DatasetWriter.create(str(folder), manifest) as writer:
        room = SHARD_TOKENS
        for number in range(rows):
            length = int(rng.choice(lengths))
            room -= manifest.storage.axis.aligned(length)
            if room < 0:
                break
            states = rng.standard_normal((length, HIDDEN)).astype(np.float16)
            writer.append(
                Sample(
                    hidden_states=dict.fromkeys(LAYERS, states),
                    input_ids=rng.integers(0, 1000, length),
                    loss_mask=np.ones(length, np.uint8),
                    sample_id=f"{number:012x}",
                    split="train",
                )
            )
    _repeat(folder, manifest, rows)


def _repeat(folder: Path, manifest: Manifest, rows: int) -> None:
    root = Root(str(folder))
    table, facts = layout.read_table(root, layout.index_part(0))
    offsets = table["token_offset"].to_numpy()
    for shard in range(1, -(-rows // table.num_rows)):
        for array in layout.array_names(manifest):
            copy = folder / layout.shard_object(array, shard)
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / layout.shard_object(array, 0), copy)
        names = [f"{shard * table.num_rows + row:012x}" for row in range(table.num_rows)]
        moved = pa.array(offsets + shard * SHARD_TOKENS, pa.int64())
        part = table.set_column(0, INDEX_SCHEMA.field(0), pa.array(names))
        part = part.set_column(1, INDEX_SCHEMA.field(1), moved)
        described = {**facts, "shard": shard, "rows": rows_digest(part)}
        (folder / layout.index_part(shard)).write_bytes(layout.encode_table(part, described))
    consolidate_index(root)


def measure(url: Path, cache: Path, what: str, ranks: int, state: Any = None) -> dict[str, Any]:
    """One process's figures."""
    words = [sys.executable, "-c", MEASURE, str(url), what, str(ranks), json.dumps(state)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout))


def report(folder: Path, rows: int) -> None:
    """Print the figures of a set of so many rows."""
    url = folder / f"set{rows}"
    write_set(url, rows)
    kept, none = folder / f"kept{rows}", folder / f"none{rows}"
    whole = measure(url, kept, "whole", 8)
    state = whole.pop("state")
    print(f"{rows:,} rows, wall (CPU) seconds: {_line(whole, 'open', 'construct', 'first batch')}")
    print(f"  {_line(whole, 'whole plan')}, {2 * state['consumed']:,} packs")
    print(f"  padding {whole['padding']:.3%}, 8 ranks {whole['balance']:.3%} over mean")
    for name, cache in (("planned anew", none), ("plan kept", kept)):
        sought = measure(url, cache, "first", 6, state)
        line = _line(sought, "construct", "seek", "first batch")
        print(f"  resume in the middle, 8 to 6 ranks, {name}: {line}")
    shutil.rmtree(url)


def _line(row: dict[str, Any], *names: str) -> str:
    return ", ".join(f"{name} {row[name][0]:.2f} ({row[name][1]:.2f})" for name in names)


def main() -> None:
    """Print it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 1_000_000])
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        for rows in options.rows:
            report(folder, rows)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
