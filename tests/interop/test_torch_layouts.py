"""SpecForge's features and EAGLE's one-layer dumps: equal, stripped, and never executed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState
from tests.interop.layouts import (
    HIDDEN,
    SLOTS,
    Wanted,
    samples,
    save,
    specforge_features,
    write_eagle,
    write_specforge,
)
from tests.interop.reading import check_equal, cut, opened, refusal_of, refusals

ALL = list(range(SLOTS))


class Code:
    """A pickle that makes a file when it is loaded without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("padded_to", [0, 20])
def test_specforge_equal_to_the_bit_without_padding(tmp_path: Path, padded_to: int) -> None:
    source = opened(write_specforge(tmp_path, samples(), padded_to=padded_to))
    assert source.format == "specforge"
    assert [entry.row for entry in source.entries()] == list(range(len(samples())))
    check_equal(source, samples(), ALL)
    facts = source.facts()
    assert (facts.slots, facts.layers, facts.norm_state) == (SLOTS, None, NormState.POST)
    assert facts.dtype == "bfloat16"


def test_ids_padded_beside_states_that_are_not(tmp_path: Path) -> None:
    # As older versions wrote it: the length of the states tells, whatever the padding id.
    features = specforge_features(Wanted(0), padded_to=20)
    for name in ("aux_hidden_state", "hidden_state"):
        features[name] = features[name][:, : len(Wanted(0).ids)].clone()
    save(features, tmp_path / "data_0.ckpt")
    check_equal(opened(tmp_path), [Wanted(0)], ALL)


def test_padding_stays_where_its_id_is_not_known(tmp_path: Path) -> None:
    save(specforge_features(Wanted(0), padded_to=20), tmp_path / "data_0.ckpt")
    source = opened(tmp_path, pad_token_id=399)
    (entry,) = source.entries()
    assert len(source.tokens(entry).input_ids) == 20


def test_a_real_token_like_padding_is_kept_where_it_trains(tmp_path: Path) -> None:
    one = Wanted(0)
    one.ids[-1], one.mask[-1] = 0, 1
    save(specforge_features(one, padded_to=20), tmp_path / "data_0.ckpt")
    check_equal(opened(tmp_path), [one], ALL)


def test_broken_features_are_refused(tmp_path: Path) -> None:
    write_specforge(tmp_path, samples())
    group = tmp_path / "rows_0-10"
    cut(group / "data_0.ckpt", 0.9)
    cut(group / "data_2.ckpt.gz", 0.9)
    save(specforge_features(Wanted(3)), group / "data_3.ckpt", packed=True)
    features = specforge_features(Wanted(4))
    save({**features, "hidden_state": features["hidden_state"][:, :2]}, group / "data_4.ckpt")
    save({**features, "aux_hidden_state": torch.zeros(1, 4, 20)}, group / "data_6.ckpt")
    save({**features, "loss_mask": torch.full((4,), 2)}, group / "data_7.ckpt")
    save({"input_ids": features["input_ids"]}, group / "data_9.ckpt")
    (tmp_path / "rows_10-20" / "data_10.ckpt").write_bytes(b"")
    source = opened(tmp_path)
    assert refusals(source) == {
        "rows_0-10/data_0.ckpt": "source_damaged",
        "rows_0-10/data_2.ckpt.gz": "source_damaged",
        "rows_0-10/data_3.ckpt": "source_duplicate",
        "rows_0-10/data_3.ckpt.gz": "source_duplicate",
        "rows_0-10/data_4.ckpt": "length_mismatch",
        "rows_0-10/data_6.ckpt": "source_layout",
        "rows_0-10/data_7.ckpt": "mask_invalid",
        "rows_0-10/data_9.ckpt": "source_layout",
        "rows_10-20/data_10.ckpt": "source_damaged",
    }
    assert source.facts().slots == SLOTS
    assert "4 rows of aux_hidden_state beside 2 of hidden_state" in refusal_of(
        source, "rows_0-10/data_4.ckpt"
    )


@pytest.mark.parametrize("kind", ["torch", "gzip", "bare", "earliest"])
def test_code_in_a_pickle_never_runs(tmp_path: Path, kind: str) -> None:
    made, file = tmp_path / "executed", tmp_path / "data_0.ckpt"
    features = {**specforge_features(Wanted(0)), "note": Code(made)}
    if kind == "bare":
        file.write_bytes(pickle.dumps(Code(made)))
    elif kind == "earliest":
        torch.save(features, file, _use_new_zipfile_serialization=False)
    else:
        save(features, file, packed=kind == "gzip")
    save(specforge_features(Wanted(1)), tmp_path / "data_1.ckpt")
    source = opened(tmp_path)
    (refused,) = refusals(source).values()
    assert refused == ("source_unsafe" if kind in ("torch", "gzip") else "source_damaged")
    assert not made.exists()


def test_the_code_would_run_without_care(tmp_path: Path) -> None:
    torch.load(save(Code(tmp_path / "executed"), tmp_path / "data_0.ckpt"), weights_only=False)
    assert (tmp_path / "executed").exists()


def test_nothing_but_padding(tmp_path: Path) -> None:
    features = specforge_features(Wanted(0))
    features["input_ids"][:] = 0
    features["loss_mask"][:] = 0
    save(features, tmp_path / "data_0.ckpt")
    with pytest.raises(InputError, match="nothing but padding"):
        opened(tmp_path).facts()


def test_features_without_aux_states(tmp_path: Path) -> None:
    features = {**specforge_features(Wanted(0)), "aux_hidden_state": None}
    (tmp_path / "rows_0-10").mkdir()
    save(features, tmp_path / "rows_0-10" / "data_0.ckpt")
    source = opened(tmp_path)
    assert source.format == "specforge"
    assert source.facts().slots == 1
    assert any("EAGLE-3" in note for note in source.facts().notes)


def test_eagle_dumps_of_two_processes(tmp_path: Path) -> None:
    source = opened(write_eagle(tmp_path, samples(torch.float16)))
    assert source.format == "eagle"
    places = [entry.place for entry in source.entries()]
    assert places[9:] == ["0/data_9.ckpt", "0/data_10.ckpt", "1/data_0.ckpt"]
    check_equal(source, samples(torch.float16), [SLOTS - 1])
    facts = source.facts()
    assert (facts.slots, facts.norm_state, facts.dtype) == (1, NormState.POST, "float16")
    assert any("EAGLE-3" in note for note in facts.notes)


def test_one_file_alone(tmp_path: Path) -> None:
    write_eagle(tmp_path, samples())
    source = opened(tmp_path / "0" / "data_2.ckpt")
    check_equal(source, [Wanted(2)], [SLOTS - 1])


def test_a_wrong_hidden_size(tmp_path: Path) -> None:
    write_eagle(tmp_path, samples())
    for size in (HIDDEN * 2, HIDDEN // 2):
        with pytest.raises(InputError, match="data_0.ckpt.*--model"):
            opened(tmp_path, hidden_size=size).facts()


def test_arrays_outlive_the_next_sample(tmp_path: Path) -> None:
    source = opened(write_specforge(tmp_path, samples()))
    entries = source.entries()
    kept = source.states(entries[0])
    for entry in entries:
        source.states(entry)
    assert np.array_equal(kept[0], Wanted(0).slot(0))
