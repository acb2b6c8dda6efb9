"""speculators' files: arrays equal, and what is broken refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState
from tests.interop.layouts import LENGTHS, SLOTS, Wanted, samples, write_arrow, write_speculators
from tests.interop.reading import check_equal, cut, opened, refusal_of, refusals

ALL = list(range(SLOTS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_arrow(tmp_path, samples())
    return write_speculators(tmp_path, samples())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_equal_to_the_bit_in_the_order_of_rows(tmp_path: Path, dtype: torch.dtype) -> None:
    wanted = samples(dtype)
    write_arrow(tmp_path, wanted)
    write_speculators(tmp_path, wanted)
    source = opened(tmp_path)
    assert source.format == "speculators"
    assert [entry.row for entry in source.entries()] == list(range(len(wanted)))
    check_equal(source, wanted, ALL)
    facts = source.facts()
    assert facts.slots == SLOTS
    assert facts.layers is None
    assert facts.norm_state is NormState.PRE
    assert f"torch.{facts.dtype}" == str(dtype)


@pytest.mark.parametrize("named", ["states", "above"])
def test_the_default_folders_of_their_tools(tmp_path: Path, named: str) -> None:
    write_arrow(tmp_path, samples())
    states = write_speculators(tmp_path / "hidden_states", samples())
    check_equal(opened(states if named == "states" else tmp_path), samples(), ALL)


def test_the_data_set_elsewhere(tmp_path: Path) -> None:
    dataset = write_arrow(tmp_path / "prepared", samples())
    states = write_speculators(tmp_path / "else" / "where", samples())
    with pytest.raises(InputError, match="--dataset"):
        opened(states)
    check_equal(opened(states, dataset=dataset), samples(), ALL)


def test_float8_is_scaled_and_rounded_once(tmp_path: Path) -> None:
    write_arrow(tmp_path, samples())
    write_speculators(tmp_path, samples(), fp8=True)
    source = opened(tmp_path)
    assert source.facts().dtype is None
    assert "float8" in source.facts().notes[0]
    for entry, one in zip(source.entries(), samples(), strict=True):
        stored = load_file(tmp_path / entry.place)
        values = stored["hidden_states"].float() * stored["hidden_states_scales"]
        for slot, states in enumerate(source.states(entry)):
            wanted = values[:, slot].to(torch.bfloat16).view(torch.uint16).numpy()
            assert np.array_equal(states, wanted)
            error = (values[:, slot] - one.states[:, slot].float()).abs().max()
            assert error < one.states.float().abs().max() / 8


def test_broken_files_are_refused_and_the_rest_is_right(folder: Path) -> None:
    wanted = samples()
    (folder / "hs_2.safetensors").unlink()
    cut(folder / "hs_4.safetensors", 0.9)
    cut(folder / "hs_5.safetensors", 0.01)
    other = load_file(folder / "hs_0.safetensors")
    save_file(other, folder / "hs_6.safetensors")  # row 0's states under row 6's name
    save_file(other, folder / "hs_99.safetensors")
    (folder / "hs_007.safetensors").write_bytes((folder / "hs_7.safetensors").read_bytes())
    other["hidden_states"] = other["hidden_states"][:3].clone()
    save_file(other, folder / "hs_8.safetensors")
    narrow = {"hidden_states": torch.zeros(5, SLOTS, 4), "token_ids": wanted[9].ids}
    save_file(narrow, folder / "hs_9.safetensors")
    one_less = {"hidden_states": wanted[10].states[:, 1:].clone(), "token_ids": wanted[10].ids}
    save_file(one_less, folder / "hs_10.safetensors")
    source = opened(folder)
    assert refusals(source) == {
        "hs_2.safetensors": "source_missing",
        "hs_4.safetensors": "source_damaged",
        "hs_5.safetensors": "source_damaged",
        "hs_6.safetensors": "tokens_differ",
        "hs_007.safetensors": "source_duplicate",
        "hs_7.safetensors": "source_duplicate",
        "hs_8.safetensors": "length_mismatch",
        "hs_9.safetensors": "source_layout",
        "hs_10.safetensors": "source_mixed",
        "hs_99.safetensors": "source_without_row",
    }
    good = [entry for entry in source.entries() if entry.row in (0, 1, 3, 11)]
    for entry in good:
        assert np.array_equal(source.states(entry)[1], wanted[entry.row].slot(1))
    assert "row 6 of the data set" in refusal_of(source, "hs_6.safetensors")


def test_facts_come_from_the_first_good_file(folder: Path) -> None:
    (folder / "hs_0.safetensors").unlink()
    cut(folder / "hs_1.safetensors", 0.5)
    assert opened(folder).facts().slots == SLOTS


def test_a_wrong_hidden_size_is_the_models_fault(folder: Path) -> None:
    with pytest.raises(InputError, match=r"hs_0.*\[5, 4, 8\].*--model"):
        opened(folder, hidden_size=16).facts()


def test_float8_without_scales(tmp_path: Path) -> None:
    write_arrow(tmp_path, samples()[:1], files=1)
    states = Wanted(0).states.to(torch.float8_e4m3fn)
    tensors = {"hidden_states": states, "token_ids": Wanted(0).ids}
    save_file(tensors, tmp_path / "hs_0.safetensors")
    with pytest.raises(InputError, match="no scales"):
        opened(tmp_path).facts()


def test_an_arrow_file_that_is_torn(folder: Path) -> None:
    cut(folder / "data-00001-of-00002.arrow", 0.5)
    with pytest.raises(InputError, match="data-00001-of-00002.arrow is not a whole Arrow file"):
        opened(folder)


def test_an_arrow_file_with_an_offset_out_of_it(folder: Path) -> None:
    path = folder / "data-00000-of-00002.arrow"
    offsets = np.cumsum([0, *LENGTHS[:6]]).astype("<i4").tobytes()
    whole = path.read_bytes()
    assert whole.count(offsets) == 2  # of the ids and of the masks
    path.write_bytes(whole.replace(offsets, offsets[:-4] + b"\xff\xff\xff\x7f"))
    with pytest.raises(InputError, match="not a whole Arrow file"):
        opened(folder)


def test_a_data_set_of_texts(tmp_path: Path) -> None:
    table = pa.table({"input_ids": ["one"], "loss_mask": [[1]]})
    write_arrow(tmp_path, samples()[:1], files=1)
    write_speculators(tmp_path, samples()[:1])
    path = str(tmp_path / "data-00000-of-00001.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(InputError, match="no column of lists input_ids, only input_ids, loss_mask"):
        opened(tmp_path)


def test_rows_in_an_order_of_indices(folder: Path) -> None:
    (folder / "state.json").write_text(
        '{"_data_files": [{"filename": "data-00000-of-00002.arrow"}], '
        '"_indices_files": [{"filename": "indices.arrow"}]}'
    )
    with pytest.raises(InputError, match="files of indices"):
        opened(folder)
