"""`import`: real states in another project's layout come in as they are, and nothing is guessed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import save_file

from eagle3data import Dataset, open_dataset
from eagle3data.extractor.importing import ImportOptions, import_states
from eagle3data.extractor.run import ExtractOptions, ExtractReport, extract
from eagle3data.interop.source import SourceOptions
from eagle3data.schema.errors import InputError
from tests.support import Command, same_sample

LAYERS = "2,15,27,30"
SHARD_TOKENS = "512"


def write_speculators(dataset: Dataset, folder: Path) -> list[str]:
    """Its layout: a file a row, and ids and masks as a Hugging Face data set beside them."""
    folder.mkdir()
    samples = [dataset[row] for row in range(len(dataset))]
    for row, sample in enumerate(samples):
        states = np.stack([sample.hidden_states[k] for k in dataset.manifest.layers], axis=1)
        tensors = {"hidden_states": states, "token_ids": sample.input_ids.astype(np.int64)}
        save_file(tensors, folder / f"hs_{row}.safetensors")
    table = pa.table(
        {
            "input_ids": [sample.input_ids.astype(np.int64) for sample in samples],
            "loss_mask": [sample.loss_mask.astype(np.int64) for sample in samples],
            "seq_len": [len(sample) for sample in samples],
        }
    )
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "dataset_info.json").write_text("{}")
    files = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "state.json").write_text(json.dumps(files))
    return [sample.sample_id for sample in samples]


@pytest.fixture(scope="module")
def source(states: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speculators") / "hidden_states"
    write_speculators(open_dataset(states), folder)
    return folder


def _words(source: Path, model: Path, url: Path) -> list[object]:
    return ["import", source, "--model", model, "--out", url, "--layers", LAYERS]


def test_states_come_in_as_they_are(
    source: Path, states: str, smollm2: Path, command: Command, tmp_path: Path
) -> None:
    done = command(*_words(source, smollm2, tmp_path / "set"), "--shard-tokens", SHARD_TOKENS)
    assert done.returncode == 0, done.stderr
    assert "clean" in done.stdout + done.stderr  # it ends with `validate`, which found it so
    here, there = open_dataset(str(tmp_path / "set")), open_dataset(states)
    assert here.manifest.capture.engine == "import"
    assert here.manifest.provenance["imported_format"] == "speculators"
    originals = {there[row].sample_id: there[row] for row in range(len(there))}
    assert len(here) == len(there)
    for row in range(len(here)):
        assert same_sample(here[row], originals[here[row].sample_id])


def test_there_and_back(states: str, smollm2: Path, command: Command, tmp_path: Path) -> None:
    """What `export-dataset` writes, `import` reads: the final states of SpecForge post-norm."""
    for layout in ("speculators", "specforge"):
        folder, url = tmp_path / layout, str(tmp_path / f"{layout}-set")
        words = ["export-dataset", states, "--format", layout, "--model", smollm2]
        done = command(*words, "--out", folder)
        assert done.returncode == 0, done.stderr
        source = SourceOptions(path=folder)
        report = import_states(
            ImportOptions(source=source, layers=LAYERS), str(smollm2), url, _extract(smollm2, url)
        )
        assert report.format == layout
        here, there = open_dataset(url), open_dataset(states)
        assert len(here) == len(there)
        originals = {there[row].sample_id: there[row] for row in range(len(there))}
        for row in range(len(here)):
            mine, original = here[row], originals[here[row].sample_id]
            for layer in (2, 15, 27):
                wanted = original.hidden_states[layer]
                if layout == "specforge":  # bfloat16, the only dtype that it trains on
                    wanted = torch.from_numpy(wanted).bfloat16().half().numpy()
                np.testing.assert_array_equal(mine.hidden_states[layer], wanted)
        final = here.manifest.capture.norm_state
        assert final == ("pre" if layout == "speculators" else "post")
        sizes = np.linalg.norm(mine.hidden_states[30].astype(np.float32), axis=1)
        before = np.linalg.norm(original.hidden_states[30].astype(np.float32), axis=1)
        assert np.allclose(sizes, before) == (layout == "speculators")


def test_what_the_source_does_not_say_is_asked_for(source: Path, smollm2: Path) -> None:
    def refused(layers: str | None) -> str:
        options = ImportOptions(source=SourceOptions(path=source), layers=layers)
        with pytest.raises(InputError) as error:
            import_states(options, str(smollm2), "/nowhere", lambda *_: pytest.fail("it began"))
        return str(error.value)

    assert "--layers" in refused(None)
    assert LAYERS in refused(None)  # what vLLM usually takes is named, not taken
    assert "4 states a token" in refused("2,15")


def test_a_bad_file_is_a_ledger_row_and_the_rest_comes_in(
    source: Path, states: str, smollm2: Path, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(source, folder)
    damaged = folder / "hs_3.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1000])
    (folder / "hs_5.safetensors").unlink()
    words = [*_words(folder, smollm2, tmp_path / "set"), "--no-validate", "--json"]
    for _ in range(2):  # the second finds everything done, and adds no row twice
        done = command(*words)
        assert done.returncode == 1, done.stderr
        report = json.loads(done.stdout)
        assert sum(report["refused"].values()) == 2
        rows = [json.loads(path.read_text()) for path in (tmp_path / "set/ledger").glob("*.json")]
        assert sorted(row["sample_id"] for row in rows) == ["hs_3.safetensors", "hs_5.safetensors"]
    assert len(open_dataset(str(tmp_path / "set"))) == len(open_dataset(states)) - 2


def test_a_file_that_breaks_after_the_scan_costs_its_sample(
    source: Path, smollm2: Path, tmp_path: Path
) -> None:
    """Ids are read first; states that then can't be are refused one by one."""
    folder = tmp_path / "source"
    shutil.copytree(source, folder)

    def run(prompts: str, options: ExtractOptions) -> ExtractReport:
        (folder / "hs_2.safetensors").unlink()
        return _extract(smollm2, str(tmp_path / "set"))(prompts, options)

    options = ImportOptions(source=SourceOptions(path=folder), layers=LAYERS)
    report = import_states(options, str(smollm2), str(tmp_path / "set"), run)
    assert report.extraction.failed == 1
    assert report.refused == {}
    assert len(open_dataset(str(tmp_path / "set"))) == report.found - 1


def _extract(model: Path, url: str) -> Callable[[str, ExtractOptions], ExtractReport]:
    return lambda prompts, options: extract(
        prompts,
        str(model),
        url,
        options,
        on_start=_unheard,
        on_tokens=_unheard,
        on_wait=_unheard,
        on_notice=_unheard,
    )


def _unheard(*_: object) -> None:
    """Nobody looks at the progress."""
