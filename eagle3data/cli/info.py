"""`eagle3data info`: what a data set is."""

from __future__ import annotations

from typing import Any

from eagle3data.cli import options as o
from eagle3data.cli.console import print_json, print_pairs, tell
from eagle3data.schema.words import hidden, size


def info(url: o.Url, json: o.Json = False) -> None:
    """Model, layers and their numbering, dtype, samples, tokens, shards and bytes.

    Example: eagle3data info ./states --json
    """
    from eagle3data.readers.dataset import open_dataset
    from eagle3data.readers.overview import overview

    dataset = open_dataset(url)
    facts = overview(dataset)
    if json:
        print_json(facts)
        return
    print_pairs(_pairs(facts))
    for warning in facts["warnings"]:
        tell(f"warning: {warning}")


def _pairs(facts: dict[str, Any]) -> list[tuple[str, str]]:
    target, capture, storage = facts["target"], facts["capture"], facts["storage"]
    sizes = facts["arithmetic"]
    names = " ".join(
        f"{layer} (embeddings)"
        if layer == 0
        else f"{layer} (final, {capture['norm_state']}-norm)"
        if layer == target["num_hidden_layers"]
        else str(layer)
        for layer in capture["layers"]
    )
    expected = ", ".join(
        f"{profile} {size(count)}" for profile, count in sizes["expected_bytes"].items()
    )
    return [
        ("data set", f"{facts['url']}, format {facts['version']}"),
        (
            "target",
            f"{target['name']}: {target['architecture']}, {target['num_hidden_layers']} "
            f"layers, hidden {target['hidden_size']:,}, vocabulary {target['vocab_size']:,}",
        ),
        ("layers", f"{names}; id k is what enters layer k"),
        ("engine", f"{capture['engine']} ({capture['engine_version']}), {capture['dtype']}"),
        (
            "storage",
            f"{storage['dtype']}, codec {storage['codec']}, shards of "
            f"{storage['shard_tokens']:,} tokens in chunks of {storage['chunk_tokens']}",
        ),
        ("samples", f"{facts['samples']:,}" + hidden(facts["hidden"])),
        ("tokens", f"{facts['tokens']:,}, {facts['loss_tokens']:,} of them with loss"),
        ("shards", f"{facts['shards']['committed']} of {facts['shards']['planned']} committed"),
        ("bytes", f"{size(facts['bytes'])} in {facts['objects']} objects"),
        (
            "arithmetic",
            f"{sizes['layers']} layers x {sizes['hidden_size']:,} x "
            f"{sizes['item_bytes']} B x {sizes['tokens']:,} tokens = {size(sizes['state_bytes'])}",
        ),
        ("expected", expected),
    ]
