"""Roles learnt from chat templates of many kinds, and masks laid on them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data import open_dataset
from eagle3data.extractor.chat import ChatEncoder
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.storage.tokenizer import load_tokenizer
from eagle3data.validation.mask_roles import UnknownRolesError, learn_roles
from eagle3data.validation.mask_turns import find_turns
from eagle3data.validation.masks import MaskChecks, check_masks
from tests.extractor import templates
from tests.faults.texts import conversations
from tests.support import write_set

Mask = list[int]
TEMPLATES = {"smollm2": None, **templates.WHOLE, "tools": templates.TOOLS}
MARKED = [name for name in TEMPLATES if name != "plain text"]


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return load_tokenizer(str(smollm2))


def with_template(tokenizer: Any, name: str) -> Any:
    changed = copy.copy(tokenizer)
    changed.chat_template = TEMPLATES[name] or tokenizer.chat_template
    return changed


def talks() -> list[list[dict[str, str]]]:
    """Chats of one to three questions, some with a system message."""
    single = conversations()
    found = []
    for at in range(12):
        turns = [message for talk in single[3 * at : 3 * at + 1 + at % 3] for message in talk]
        system = [{"role": "system", "content": "Be brief."}] if at % 2 else []
        found.append([*system, *turns])
    return found


@pytest.fixture(scope="module")
def folder_of(tokenizer: Any, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model folder without weights, by the name of its template."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("model")
        with_template(tokenizer, name).save_pretrained(folder)
        (folder / "config.json").write_text((smollm2 / "config.json").read_text())
        return folder

    return make


class MaskedSet:
    """Chats as `prepare` encodes them, whose masks a test may change before they are checked."""

    def __init__(self, tokenizer: Any, name: str, model: Path, folder: Path) -> None:
        encoder = ChatEncoder(with_template(tokenizer, name))
        encoded = [chat for talk in talks() for chat in encoder.encode(talk)]
        self.ids = [chat.input_ids for chat in encoded]
        self.masks = [list(chat.loss_mask) for chat in encoded]
        self.model, self.folder = model, folder

    def check(self) -> MaskChecks:
        axis = TokenAxis(shard_tokens=1024, chunk_tokens=16)
        manifest = Manifest.synthetic(
            hidden_size=2, num_hidden_layers=4, vocab_size=49_152, layers=[4], axis=axis
        )
        samples = [
            Sample(
                hidden_states={4: np.ones((len(ids), 2), np.float16)},
                input_ids=ids,
                loss_mask=mask,
                sample_id=f"chat-{at:02d}",
            )
            for at, (ids, mask) in enumerate(zip(self.ids, self.masks, strict=True))
        ]
        url = write_set(self.folder, samples, manifest)
        return check_masks(open_dataset(url), str(self.model))

    def change(self, edit: Any, *places: int) -> None:
        for at in places or range(len(self.masks)):
            self.masks[at] = edit(self.masks[at])


@pytest.fixture
def masked(tokenizer: Any, folder_of: Any, tmp_path: Path) -> Any:
    return lambda name="smollm2": MaskedSet(tokenizer, name, folder_of(name), tmp_path / "set")


def moved(shift: int) -> Any:
    def move(mask: Mask) -> Mask:
        padded = [0] * len(mask) + mask + [0] * len(mask)
        return padded[len(mask) - shift : 2 * len(mask) - shift]

    return move


@pytest.mark.parametrize("name", MARKED)
def test_masks_of_prepare_are_right(masked: Any, name: str) -> None:
    found = masked(name).check()
    assert (found.findings, found.undecided) == ([], [])
    assert "were compared with the turns" in found.confidence[0]


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("shift", [1, -1, 2])
def test_every_mask_shifted(masked: Any, name: str, shift: int) -> None:
    chats = masked(name)
    chats.change(moved(shift))
    findings = chats.check().findings
    assert [(f.kind, f.sample_id) for f in findings] == [("mask_shifted", None)]
    assert f"{shift:+d} tokens" in findings[0].detail


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("shift", [1, -1])
def test_one_mask_shifted(masked: Any, name: str, shift: int) -> None:
    chats = masked(name)
    chats.change(moved(shift), 4)
    findings = chats.check().findings
    assert [(f.kind, f.sample_id) for f in findings] == [("mask_shifted", "chat-04")]
    assert f"{shift:+d} tokens" in findings[0].detail


@pytest.mark.parametrize("shift", [1, -1])
def test_a_mask_that_was_rolled(masked: Any, shift: int) -> None:
    chats = masked()
    chats.change(lambda mask: np.roll(mask, shift).tolist(), 3)
    assert [f.kind for f in chats.check().findings] == ["mask_shifted"]


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("places", [(), (5,)])
def test_the_others_are_masked(masked: Any, name: str, places: tuple[int, ...]) -> None:
    chats = masked(name)
    chats.change(lambda mask: [1 - kept for kept in mask], *places)
    findings = chats.check().findings
    assert [(f.kind, f.severity) for f in findings] == [("mask_wrong_role", "error")]
    assert findings[0].sample_id == ("chat-05" if places else None)
    assert "user" in findings[0].detail


def test_everything_but_the_first_token(masked: Any) -> None:
    chats = masked()
    chats.change(lambda mask: [0] + [1] * (len(mask) - 1))
    findings = chats.check().findings
    assert [(f.kind, f.sample_id) for f in findings] == [("mask_wrong_role", None)]


def test_all_after_the_first_answer_began(masked: Any) -> None:
    """In a chat of several turns; of one sample alone the answer might hold such text."""
    chats = masked()
    several = [at for at, mask in enumerate(chats.masks) if np.diff(mask).clip(0).sum() > 1]
    for at in several:
        first = chats.masks[at].index(1)
        chats.masks[at] = [0] * first + [1] * (len(chats.masks[at]) - first)
    findings = chats.check().findings
    assert {f.sample_id for f in findings} == {f"chat-{at:02d}" for at in several}
    assert {(f.kind, f.severity) for f in findings} == {("mask_wrong_role", "warning")}


def test_the_mask_of_another_sample(masked: Any) -> None:
    chats = masked()
    chats.masks[2], chats.masks[5] = (
        np.resize(chats.masks[b], len(chats.masks[a])).tolist() for a, b in ((2, 5), (5, 2))
    )
    findings = chats.check().findings
    assert {f.kind for f in findings} <= {"mask_wrong_role"}
    assert findings


def _only_last(mask: Mask) -> Mask:
    last = max(at for at, kept in enumerate(mask) if kept)
    first = max((at for at in range(last) if not mask[at]), default=-1) + 1
    return [0] * first + mask[first:]


def _without_end(mask: Mask) -> Mask:
    return [int(kept and at + 1 < len(mask) and mask[at + 1]) for at, kept in enumerate(mask)]


def _with_newline(mask: Mask) -> Mask:
    return [int(kept or (at > 0 and mask[at - 1])) for at, kept in enumerate(mask)]


def _with_header(mask: Mask) -> Mask:
    return [int(any(mask[at : at + 5])) if not mask[at] else 1 for at in range(len(mask))]


def _prefilled(mask: Mask) -> Mask:
    return [int(kept and at >= 3 and all(mask[at - 3 : at])) for at, kept in enumerate(mask)]


@pytest.mark.parametrize("places", [(), (1, 4)])
@pytest.mark.parametrize(
    "custom", [_only_last, _without_end, _with_newline, _with_header, _prefilled]
)
def test_other_customs_are_no_fault(masked: Any, custom: Any, places: tuple[int, ...]) -> None:
    chats = masked()
    chats.change(custom, *places)
    assert chats.check().findings == []


@pytest.mark.parametrize("custom", [_without_end, _with_newline])
@pytest.mark.parametrize("shift", [1, -1])
def test_shifts_are_told_from_customs(masked: Any, custom: Any, shift: int) -> None:
    chats = masked()
    chats.change(custom)
    chats.change(moved(shift))
    findings = chats.check().findings
    assert [(f.kind, f.sample_id) for f in findings] == [("mask_shifted", None)]
    assert f"{shift:+d} tokens" in findings[0].detail


def test_truncated_samples_are_no_fault(masked: Any) -> None:
    chats = masked()
    for at in range(len(chats.ids)):
        first = chats.masks[at].index(1)
        chats.ids[at] = chats.ids[at][: first + 6]
        chats.masks[at] = chats.masks[at][: first + 6]
    assert chats.check().findings == []


def test_plain_text_is_not_undecided(masked: Any, tokenizer: Any) -> None:
    chats = masked()
    chats.ids = [tokenizer("Only words, and no turns.")["input_ids"] for _ in range(4)]
    chats.masks = [[0] + [1] * (len(ids) - 1) for ids in chats.ids]
    found = chats.check()
    assert (found.findings, found.undecided) == ([], [])
    assert "no sample holds an assistant's turn" in found.confidence[0]


def test_a_template_of_plain_text_is_undecided(masked: Any) -> None:
    found = masked("plain text").check()
    assert found.findings == []
    assert "plain text" in found.undecided[0]


def test_without_a_template_or_a_model(masked: Any) -> None:
    chats = masked()
    (chats.model / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((chats.model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (chats.model / "tokenizer_config.json").write_text(json.dumps(settings))
    found = chats.check()
    assert (found.findings, found.undecided) == ([], [])
    assert "no chat template" in found.confidence[0]
    without = check_masks(open_dataset(str(chats.folder)), None)
    assert (without.findings, without.undecided) == ([], [])
    assert "not proven" in without.confidence[0]


def test_turns_of_a_conversation(tokenizer: Any) -> None:
    talk = talks()[1]
    ids = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=True)["input_ids"]
    turns = find_turns(np.array(ids), learn_roles(tokenizer))
    assert [turn.role for turn in turns] == [message["role"] for message in talk]
    for turn, message in zip(turns, talk, strict=True):
        assert turn.end is not None
        assert tokenizer.decode(ids[turn.contents[0] : turn.end]) == message["content"]


def test_a_template_that_leaves_answers_out(tokenizer: Any) -> None:
    changed = copy.copy(tokenizer)
    changed.chat_template = templates.DROPS_ASSISTANT
    with pytest.raises(UnknownRolesError, match="leaves messages out"):
        learn_roles(changed)
