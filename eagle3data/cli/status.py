"""`eagle3data status`: how far an extraction is."""

from __future__ import annotations

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, print_pairs


def status(url: o.Url, json: o.Json = False) -> None:
    """Committed of planned shards and tokens, and what failed.

    Example: eagle3data status ./states
    """
    from eagle3data.readers.dataset import open_dataset
    from eagle3data.storage.layout import committed_shards, read_plan
    from eagle3data.writers.data_set import read_ledger

    dataset = open_dataset(url)
    plan = read_plan(dataset.root)
    planned = len(set(plan["shard"].to_pylist()))
    committed = len(committed_shards(dataset.root))
    failures = read_ledger(dataset.root)
    tokens = sum(int(length or 0) for length in plan["length"].to_pylist())
    if json:
        print_json(
            {
                "shards": {"planned": planned, "committed": committed},
                "tokens": {"planned": tokens, "committed": dataset.tokens},
                "failures": failures,
            }
        )
        return
    print_pairs(
        [
            ("shards", f"{committed:,} of {planned:,} committed"),
            ("tokens", f"{dataset.tokens:,} of {tokens:,}"),
            ("failed", f"{len(failures):,} samples"),
        ]
    )
    for failure in failures:
        out.print(f"  shard {failure['shard']}: {failure['reason']}", markup=False)
