"""The commands that README and docs show exist, with the options and settings they are given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from eagle3data.cli.main import app
from eagle3data.schema.errors import InputError
from eagle3data.trainer.config import load_config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PROMPT = re.compile(r"^([\w-]*\$ )?((\w+=\S+|torchrun .*-m) )*(eagle3data|eagle3data\.cli\.main) ")
_SETTING = re.compile(r"^[a-z_]+\.[a-z_]+=")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command in the console blocks, from the command's name on."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r" (?:&&|\|) ", line):
                found = _PROMPT.match(part)
                if found and not part[found.end() :].startswith("..."):
                    yield shlex.split(part[found.end() :], comments=True)


def check(words: list[str]) -> None:
    group = typer.main.get_command(app)
    name, *rest = words
    command = group.commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(rest))
    settings = [word for word in rest if _SETTING.match(word)]
    config = rest[rest.index("--config") + 1] if "--config" in rest else None
    load_config(ROOT / config if config else None, settings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_real(page: Path) -> None:
    for words in commands(page.read_text()):
        if "--help" not in words:
            check(words)


def test_the_road_is_looked_at() -> None:
    names = [words[0] for words in commands((ROOT / "docs" / "train.md").read_text())]
    assert names.count("train") == 5
    assert {"prepare", "extract", "validate", "evaluate", "export", "status"} <= set(names)


@pytest.mark.parametrize(
    "words",
    [
        "train ./states --model MODEL --ou ./draft",
        "train ./states --model MODEL --out ./draft train.epoch=2",
        "trian ./states --model MODEL",
        "export ./draft --out ./x",
    ],
)
def test_a_wrong_command_is_seen(words: str) -> None:
    # typer carries a click of its own, whose errors have this one's base.
    usage_error = typer.BadParameter.__mro__[1]
    with pytest.raises((usage_error, InputError, KeyError)):
        check(words.split())
