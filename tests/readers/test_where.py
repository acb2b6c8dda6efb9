"""Expressions over the index: what they select, and what they say when they can't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eagle3data import open_dataset
from eagle3data.readers.dataset import Dataset
from eagle3data.readers.where import selected
from eagle3data.schema.errors import InputError
from tests.support import random_sample, small_manifest, write_set

Row = dict[str, Any]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    manifest = small_manifest()
    more: list[Row] = [
        {"split": "train", "source": "wiki.jsonl:1", "source_extra": {"topic": "code"}},
        {"split": "eval", "source": "wiki.jsonl:2", "witness_token": 3, "witness_logprob": -0.5},
        {"source": "chat.jsonl:1", "witness_token": 4, "witness_logprob": -3.0},
        {"split": "train", "source": "chat.jsonl:2", "source_extra": {"topic": "math"}},
    ]
    samples = [
        random_sample(f"s{number}", 20 + 30 * number, number, manifest, **fields)
        for number, fields in enumerate(more)
    ]
    return open_dataset(write_set(tmp_path_factory.mktemp("where") / "set", samples, manifest))


@pytest.mark.parametrize(
    ("expression", "fulfils"),
    [
        ("length > 49 and split == 'train'", lambda r: r["length"] > 49 and r["split"] == "train"),
        ("length < 9 or not split == 'train'", lambda r: r["length"] < 9 or r["split"] != "train"),
        ("split != 'eval'", lambda r: r["split"] != "eval"),
        ("split is None", lambda r: r["split"] is None),
        ("split is not None", lambda r: r["split"] is not None),
        ("sample_id in ['s1', 's3']", lambda r: r["sample_id"] in ["s1", "s3"]),
        ("sample_id not in ('s1',)", lambda r: r["sample_id"] != "s1"),
        ("'wiki' in source", lambda r: "wiki" in r["source"]),
        ("'wiki' not in source", lambda r: "wiki" not in r["source"]),
        ("30 < length <= 80", lambda r: 30 < r["length"] <= 80),
        ("n_loss_tokens / length > 0.5", lambda r: r["n_loss_tokens"] / r["length"] > 0.5),
        ("length * 2 - 1 > -3 + 100", lambda r: r["length"] * 2 - 1 > 97),
        ("witness_logprob > -1", lambda r: (r["witness_logprob"] or -9) > -1),
        ("not witness_logprob > -1", lambda r: not (r["witness_logprob"] or -9) > -1),
        ("absmax[6] > 3.4", lambda r: r["absmax"][1] > 3.4),
        ("source_extra['topic'] == 'code'", lambda r: ("topic", "code") in r["source_extra"]),
        ("sample_id in []", lambda r: False),
        ("True", lambda r: True),
    ],
)  # fmt: skip
def test_selects_what_python_would(
    dataset: Dataset, expression: str, fulfils: Callable[[Row], bool]
) -> None:
    rows = dataset.index.to_pylist()
    found = selected(dataset.index, expression, dataset.manifest.layers)
    assert found.tolist() == [fulfils(row) for row in rows]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("lenght > 3", r"no column 'lenght'.*length.*source_extra"),
        ("input_ids == 3", "no column 'input_ids'"),
        ("split == train", "Texts are quoted"),
        ("length >", "not an expression"),
        ("length > 'a'", r"int64, string"),
        ("length", "expected a condition"),
        ("length > 1 and 3", "'3' is int64, not a condition"),
        ("absmax > 1", r"write absmax\[12\]"),
        ("absmax[3] > 1", "the layers are 2, 6, 9, 12"),
        ("source_extra == 'a'", r"source_extra\['topic'\]"),
        ("split[3] == 'a'", "one value a sample"),
        ("__import__('os').system('true')", "is not understood"),
        ("sample_id.__class__ == 1", "is not understood"),
        ("[x for x in length]", "is not understood"),
        ("length ** 999999999 > 1", "is not understood"),
        ("length > 99999999999999999999", "too large"),
        ("'a' * 1000000000000 == source", r"string"),
    ],
)
def test_refuses_with_a_sentence(dataset: Dataset, expression: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        selected(dataset.index, expression, dataset.manifest.layers)


def test_nesting_without_end_is_refused(dataset: Dataset) -> None:
    with pytest.raises(InputError, match="--where"):
        selected(dataset.index, "not " * 100_000 + "True", dataset.manifest.layers)
