"""Training that starts from a draft: a run's, or one that somebody published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3data.schema.errors import InputError
from eagle3data.storage.model_weights import load_embeddings
from eagle3data.trainer.config import TrainConfig, load_config
from eagle3data.trainer.export import export_draft
from eagle3data.trainer.inputs import gather
from eagle3data.trainer.layouts import ExportFormat
from eagle3data.trainer.loop import train
from eagle3data.trainer.saved import SavedDraft
from tests.trainer import small
from tests.trainer.test_export import saved
from tests.trainer.test_published import edit, rewrite


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("start")
    target = small.target_folder(folder / "target")
    return str(small.data_set(folder / "states", target)), str(target)


@pytest.fixture
def published(made: tuple[str, str], tmp_path: Path) -> Path:
    """A draft in speculators' layout as a stranger would publish it."""
    embeddings = load_embeddings(made[1])
    out = tmp_path / "published"
    export_draft(saved(), out, ExportFormat.SPECULATORS, embeddings=embeddings)
    edit(out, lambda config: config.pop("eagle3data"))
    return out


def config(source: Path, *more: str) -> TrainConfig:
    return load_config(
        None,
        [
            f"model.init_from={source}",
            "data.token_budget=64",
            "train.ttt_steps=2",
            "train.max_steps=2",
            *more,
        ],
    )


def test_a_published_draft_is_trained_on(
    made: tuple[str, str], published: Path, tmp_path: Path
) -> None:
    inputs = gather(*made, config(published))
    draft = saved()
    for name, tensor in inputs.draft.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, draft.parameters[name].bfloat16().float())
    assert inputs.vocabulary.d2t.tolist() == draft.vocabulary.d2t.tolist()
    assert inputs.description.config == draft.description.config
    run = tmp_path / "run"
    first = train(*made, run, config(published)).summary
    assert first["draft_vocab_size"] == 40
    # And on from the run, with a fresh optimiser, where it was left.
    second = train(*made, tmp_path / "again", config(run)).summary
    assert second["held_out"]["start"] == first["held_out"]["end"]


def test_a_draft_for_sglang_needs_no_word(made: tuple[str, str], tmp_path: Path) -> None:
    export_draft(saved(), tmp_path / "out", ExportFormat.SGLANG)
    edit(tmp_path / "out", lambda found: found.pop("eagle3data"))
    assert gather(*made, config(tmp_path / "out")).description.aux_layers == small.AUX
    with pytest.raises(InputError, match=r"\[1, 2, 3\].*model\.init_numbering=sglang"):
        gather(*made, config(tmp_path / "out", "model.init_numbering=vllm"))


def test_other_layers_are_refused(made: tuple[str, str], published: Path) -> None:
    edit(published, lambda found: found.update(eagle_aux_hidden_state_layer_ids=[1, 3, 5]))
    with pytest.raises(InputError, match=r"reads the layers \[1, 3, 5\].*trains on \[2, 3, 4\]"):
        gather(*made, config(published))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.draft_vocab_size=50", "model.draft_vocab_size is 50, the draft's is 40"),
        ("model.norm_before_residual=true", "model.norm_before_residual is True"),
        ("model.lm_head=copied", "model.lm_head is 'copied'"),
        ("model.intermediate_size=64", "model.intermediate_size is 64, the draft's is 48"),
    ],
)
def test_its_shape_is_its_own(
    made: tuple[str, str], published: Path, setting: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        gather(*made, config(published, setting))
    gather(*made, config(published, "model.draft_vocab_size=40"))


def test_embeddings_of_its_own_are_not_lost(made: tuple[str, str], published: Path) -> None:
    def learned(tensors: dict[str, Any]) -> None:
        tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"] * 1.5

    rewrite(published, learned)
    with pytest.raises(InputError, match="embeddings that are not the target's"):
        gather(*made, config(published))


def test_a_run_of_another_target_is_refused(made: tuple[str, str], tmp_path: Path) -> None:
    from eagle3data.trainer.saved import write_draft

    other = saved()
    description = other.description.model_copy(update={"target_layers": 7})
    (tmp_path / "old").mkdir()
    write_draft(
        tmp_path / "old",
        SavedDraft(
            description=description, parameters=other.parameters, vocabulary=other.vocabulary
        ),
    )
    with pytest.raises(InputError, match="a target of 7 layers"):
        gather(*made, config(tmp_path / "old"))
