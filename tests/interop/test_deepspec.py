"""DeepSpec's target cache: equal, layers converted, and damage refused record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagle3data.interop.choice import open_source
from eagle3data.interop.source import SourceOptions
from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState
from tests.interop.layouts import HIDDEN, SLOTS, samples, write_deepspec
from tests.interop.reading import check_equal, cut, opened, refusal_of, refusals


def test_equal_to_the_bit(tmp_path: Path) -> None:
    source = opened(write_deepspec(tmp_path, samples()))
    assert source.format == "deepspec"
    check_equal(source, samples(), list(range(SLOTS)))


def test_facts_convert_the_layers(tmp_path: Path) -> None:
    write_deepspec(tmp_path, samples())
    source = open_source(SourceOptions(path=tmp_path), hidden_size=HIDDEN, num_hidden_layers=12)
    facts = source.facts()
    assert facts.layers == [0, 5, 9, 12]  # -1 is the embeddings, 4 the output of the fifth layer
    assert (facts.norm_state, facts.dtype) == (NormState.POST, "bfloat16")
    assert facts.model == "org/target"
    unsaid = opened(tmp_path).facts()
    assert unsaid.layers is None
    assert any("0, 5, 9 and the final" in note for note in unsaid.notes)


@pytest.mark.parametrize("layers", [8, 9])
def test_layers_that_the_target_does_not_have(tmp_path: Path, layers: int) -> None:
    write_deepspec(tmp_path, samples())
    options = SourceOptions(path=tmp_path)
    with pytest.raises(InputError, match=r"\[-1, 4, 8\]; a target of.*--model"):
        open_source(options, hidden_size=HIDDEN, num_hidden_layers=layers)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_without_scales_is_exact_in_bfloat16(tmp_path: Path, dtype: torch.dtype) -> None:
    wanted = samples()
    for one in wanted:
        one.states = one.states.to(dtype).to(torch.bfloat16)
    source = opened(write_deepspec(tmp_path, samples(), dtype))
    check_equal(source, wanted, list(range(SLOTS)))
    assert any("float8" in note for note in source.facts().notes)


def test_a_torn_shard_and_index(tmp_path: Path) -> None:
    write_deepspec(tmp_path, samples())
    cut(tmp_path / "shard-00000.bin", 0.97)
    index = np.fromfile(tmp_path / "samples.idx", np.uint8)
    index[56 * 2] = 9  # sample 2 calls itself 9
    index[: 56 * 11 + 5].tofile(tmp_path / "samples.idx")
    source = opened(tmp_path)
    assert refusals(source) == {
        "samples.idx#2": "source_damaged",
        "samples.idx#6": "source_damaged",
        "samples.idx#11": "source_damaged",
    }
    assert "record 2 is of sample 9" in refusal_of(source, "samples.idx#2")
    assert "shard-00000.bin is of" in refusal_of(source, "samples.idx#6")
    assert "11 records" in refusal_of(source, "samples.idx#11")


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    write_deepspec(tmp_path, samples())
    (tmp_path / "shard-00001.bin").unlink()
    assert refusals(opened(tmp_path)) == {
        f"samples.idx#{n}": "source_missing" for n in range(7, 12)
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 3}, "version 3"),
        ({"hidden_dtype": "int4"}, "int4"),
        ({"hidden_size": 16}, "hidden size 16; the target has 8"),
        ({"target_layer_ids": "all"}, "not the manifest"),
    ],
)
def test_a_manifest_of_something_else(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    write_deepspec(tmp_path, samples(), **changes)
    with pytest.raises(InputError, match=said):
        opened(tmp_path)


def test_a_shard_outside_the_folder_is_not_followed(tmp_path: Path) -> None:
    shards = [{"file_name": "../shard-00000.bin"}, {"file_name": "/etc/passwd"}]
    write_deepspec(tmp_path / "cache", samples(), shards=shards)
    found = refusals(opened(tmp_path / "cache"))
    assert found == {f"samples.idx#{n}": "source_missing" for n in range(7, 12)}
