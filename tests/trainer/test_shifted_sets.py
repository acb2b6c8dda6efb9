"""The benchmark shifts what its copies are named for, and splits its command line rightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.shifted_training import VARIANTS, parse, shifted, write_copy
from eagle3data.readers.dataset import open_dataset
from tests.trainer import small


def test_each_copy_is_shifted_where_its_name_says(tmp_path: Path) -> None:
    target = small.target_folder(tmp_path / "target")
    right = open_dataset(str(small.data_set(tmp_path / "states", target, samples=5)))
    for variant in VARIANTS:
        url = str(tmp_path / variant.name)
        write_copy(right.url, variant, url, samples=3)
        write_copy(right.url, variant, url, samples=3)  # there already
        copy = open_dataset(url)
        assert copy.index["sample_id"].to_pylist() == ["s0", "s1", "s2"]
        assert copy.index["split"].to_pylist() == ["eval", "train", "train"]
        for sample in copy:
            before = right.get(sample.sample_id)
            assert np.array_equal(sample.input_ids, before.input_ids)
            for layer, states in sample.hidden_states.items():
                by = variant.shift if variant.final or layer != small.FINAL else 0
                inside = slice(1, len(sample) - 1)
                moved = np.roll(before.hidden_states[layer], -by, axis=0)
                assert np.array_equal(states[inside], moved[inside])
                assert variant.shift == 0 or np.array_equal(states[0], states[1]) == (by == -1)


def test_the_ends_are_repeated(tmp_path: Path) -> None:
    target = small.target_folder(tmp_path / "target")
    sample = open_dataset(str(small.data_set(tmp_path / "states", target, samples=1)))[0]
    later = shifted(sample, VARIANTS[1], small.FINAL).hidden_states[2]
    assert np.array_equal(later[-1], sample.hidden_states[2][-1])
    assert np.array_equal(later[0], sample.hidden_states[2][1])


def test_settings_and_what_is_passed_on() -> None:
    words = ["./states", "--model", "M", "train.max_steps=2", "--out", "o", "data.verify=none"]
    found = parse([*words, "--", "--max-new-tokens", "5", "--engine-arg", "a=1"])
    assert (found.url, found.settings) == ("./states", ["train.max_steps=2", "data.verify=none"])
    assert found.evaluate == ["--max-new-tokens", "5", "--engine-arg", "a=1"]
    assert parse(words).evaluate == []
