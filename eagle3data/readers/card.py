"""The data card: a README that says what a set is, for whoever finds it in a bucket or on a hub.

The block at its top is what the Hugging Face Hub reads; its viewer then shows the token index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3data.readers.dataset import Dataset
from eagle3data.readers.overview import overview, statistics
from eagle3data.schema.words import hidden, size
from eagle3data.storage import layout

NAME = "README.md"
_MARK = "<!-- eagle3data wrote this card of generation "
_CATEGORIES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))


def write_card(dataset: Dataset, report: Mapping[str, Any] | None = None) -> bool:
    """Put the card into the set; a README that somebody else wrote stays as it is.

    So does a card of the set as it is now, which may tell a validation, unless there is a report.

    Args:
        dataset: a set that can be written.
        report: what `validate --json` printed, to be told in the card.

    Returns:
        Whether the set's card is this one now.

    Raises:
        SpaceError, InputError: the place is full or can't be written.
    """
    there = read_card(dataset)
    if there is not None and not is_ours(there):
        return False
    if report is not None or there is None or f"{_MARK}{dataset.generation}" not in there:
        dataset.root.replace(NAME, render_card(dataset, report).encode())
    return True


def is_ours(text: str) -> bool:
    """Whether a README is a card that may be written anew."""
    return _MARK in text


def read_card(dataset: Dataset) -> str | None:
    """The README of a set; None where it has none."""
    if not dataset.root.exists(NAME):
        return None
    return dataset.root.read(NAME).decode("utf-8", "replace")


def render_card(dataset: Dataset, report: Mapping[str, Any] | None = None) -> str:
    """The card as Markdown, with the block of metadata that hubs read.

    Args:
        dataset: of the card.
        report: what `validate --json` printed.
    """
    facts, numbers = overview(dataset), statistics(dataset)
    target = facts["target"]
    parts = [
        _front_matter(facts),
        f"{_MARK}{facts['generation']}. Delete this line to keep your own changes. -->",
        f"# Hidden states of {_escaped(target['name'])}",
        "States that the target model computed for each token of each sample, to train an EAGLE-3 "
        "draft on. Every chunk has a checksum, and the index says which rows are whose.",
        _table(("what", "value"), _facts(facts)),
        "## Samples",
        _table(*_samples(numbers)),
        "## States by layer",
        "Root mean square of a sample's states, and the largest magnitude.",
        _table(*_layers(numbers)),
        "## Validation",
        *_validation(report),
        "## Reading it",
        _HOW_TO.strip(),
    ]
    return "\n\n".join(parts) + "\n"


_HOW_TO = """
```python
import eagle3data as e3

dataset = e3.open_dataset("URL")  # a folder, s3://..., gs://..., hf://datasets/...
sample = dataset[0]  # hidden_states {layer: [T, H]}, input_ids [T], loss_mask [T]
for batch in e3.StreamingLoader(dataset, token_budget=8192):
    ...
```

The arrays are Zarr version 3, which any of its readers opens; `index/all.arrow` has a row a sample.
"""


def _front_matter(facts: Mapping[str, Any]) -> str:
    """The hub's metadata. JSON is YAML, and nothing in a name can end a JSON string."""
    samples = facts["samples"]
    category = next((name for limit, name in _CATEGORIES if samples < limit), "n>1M")
    metadata = {
        "pretty_name": f"EAGLE-3 hidden states of {facts['target']['name']}",
        "tags": ["eagle3data", "eagle-3", "speculative-decoding", "hidden-states"],
        "size_categories": [category],
        "configs": [{"config_name": "index", "data_files": layout.ALL_PARTS}],
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in metadata.items()]
    return "\n".join(["---", *lines, "---"])


def _facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    target, capture, storage = facts["target"], facts["capture"], facts["storage"]
    revision = f", revision {target['revision']}" if target["revision"] else ""
    shards = facts["shards"]
    return [
        (
            "target",
            f"{target['name']}{revision}: {target['architecture']}, {target['num_hidden_layers']} "
            f"layers, hidden {target['hidden_size']:,}, vocabulary {target['vocab_size']:,}",
        ),
        ("config", target["config_digest"]),
        ("tokenizer", facts["tokenizer"]["digest"] or "not known"),
        (
            "layers",
            f"{', '.join(map(str, capture['layers']))}; layer k is what enters layer k of the "
            f"model, {target['num_hidden_layers']} is the final one, "
            f"{capture['norm_state']}-norm",
        ),
        ("engine", f"{capture['engine']} {capture['engine_version']}, in {capture['dtype']}"),
        ("stored", f"{storage['dtype']}, codec {storage['codec']}"),
        ("samples", f"{facts['samples']:,}{hidden(facts['hidden'])}"),
        ("tokens", f"{facts['tokens']:,}, {facts['loss_tokens']:,} of them with loss"),
        ("shards", f"{shards['committed']:,} of {shards['planned']:,} committed"),
        ("bytes", size(facts["bytes"])),
        ("format", f"eagle3data {facts['version']}"),
        ("generation", facts["generation"]),
        *(("warning", warning) for warning in facts["warnings"]),
    ]


def _samples(numbers: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    lengths, shares = numbers["length"], numbers["loss_share"]
    rows = [
        ("tokens", *(f"{value:,.0f}" for value in lengths.values())),
        ("share with loss", *(f"{value:.2f}" for value in shares.values())),
    ]
    return ("a sample's", *lengths), rows


def _layers(numbers: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    heads = ("layer", "median rms", "90 % rms", "largest", "zero rows", "not finite")
    rows: list[tuple[str, ...]] = [
        (
            str(row["layer"]),
            f"{row['rms']['median']:.3g}",
            f"{row['rms']['p90']:.3g}",
            f"{row['absmax']:,.5g}",
            f"{row['n_zero_rows']:,}",
            f"{row['n_nan'] + row['n_inf']:,}",
        )
        for row in numbers["layers"]
    ]
    return heads, rows


def _validation(report: Mapping[str, Any] | None) -> list[str]:
    if report is None:
        return [
            "No validation is told here. `eagle3data validate URL --level all --model MODEL` "
            "proves that each state belongs to its token."
        ]
    checked = report["checked"]
    said = (
        f"**{report['verdict']}** at level {report['level']}: {checked['samples']:,} samples, "
        f"{checked['tokens']:,} tokens, {size(checked['bytes'])} read."
    )
    kinds = sorted({finding["kind"] for finding in report["findings"]})
    sentences = [
        *(f"Found: {kind}." for kind in kinds),
        *report["undecided"],
        *report["confidence"],
    ]
    return [said, "\n".join(f"- {_escaped(sentence)}" for sentence in sentences)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def _escaped(text: str) -> str:
    """Text that comes from elsewhere, so that it stays text."""
    plain = "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
