"""A small clean data set of real states, and a fresh copy of it for each fault."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.capture import LAYERS, ONE_SHORT, Captured, capture, write
from tests.faults.natures import NATURES, tokens
from tests.faults.stored import StoredSet
from tests.faults.texts import conversations
from tests.once import made_once


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="session")
def target(smollm2: Path) -> Any:
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16).eval()


@pytest.fixture(scope="session")
def captured(
    tokenizer: Any, target: Any, tmp_path_factory: pytest.TempPathFactory
) -> list[Captured]:
    """Ids, mask, states of more layers than a set keeps, and witness of each conversation."""
    texts, masks = [], []
    for messages in conversations():
        prompt = tokenizer.apply_chat_template(
            messages[:1], tokenize=True, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
        ids = whole["input_ids"]
        texts.append(ids)
        masks.append([int(at >= len(prompt)) for at in range(len(ids))])
    layers = [*LAYERS[:-1], ONE_SHORT, LAYERS[-1]]
    run = partial(capture, target, texts, masks, layers)
    return _once(tmp_path_factory, "captured", run)


def _once(
    factory: pytest.TempPathFactory, name: str, run: Callable[[], list[Captured]]
) -> list[Captured]:
    """What a run of the target gives, which takes a minute, once for all test processes."""

    def make(folder: Path) -> None:
        (folder / "captured.pickle").write_bytes(pickle.dumps(run()))

    data = (made_once(factory, name, make) / "captured.pickle").read_bytes()
    found: list[Captured] = pickle.loads(data)
    return found


@pytest.fixture(scope="session")
def clean_folder(
    captured: list[Captured], smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The clean data set; tests copy it."""
    return write(tmp_path_factory.mktemp("faults") / "clean", smollm2, captured)


@pytest.fixture
def stored(clean_folder: Path, tmp_path: Path) -> StoredSet:
    """A copy to be damaged."""
    shutil.copytree(clean_folder, tmp_path / "set")
    return StoredSet(tmp_path / "set")


@pytest.fixture(scope="session")
def captured_nature(
    tokenizer: Any, target: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Captured]]:
    """Real states of texts of one of `NATURES`, run once a session."""
    kept: dict[str, list[Captured]] = {}

    def of(nature: str) -> list[Captured]:
        if nature not in kept:
            both = [tokens(tokenizer, text) for text in NATURES[nature]()]
            layers = [*LAYERS[:-1], ONE_SHORT, LAYERS[-1]]
            run = partial(capture, target, [ids for ids, _ in both], [m for _, m in both], layers)
            kept[nature] = _once(tmp_path_factory, f"nature-{nature}", run)
        return kept[nature]

    return of
