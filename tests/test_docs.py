"""The commands that README and docs show exist, with the options and settings they are given."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from eagle3data.cli.main import COMMANDS, app
from eagle3data.schema.errors import InputError
from eagle3data.trainer.config import load_config
from tests.pages import DOCS, PAGES, README, ROOT, blocks, headings, links, prose
from tools import demo, recipes

GROUP = typer.main.get_command(app)
_PROMPT = re.compile(r"^([\w-]*\$ )?((\w+=\S+|torchrun .*-m) )*(eagle3data|eagle3data\.cli\.main) ")
_SETTING = re.compile(r"^[a-z_]+\.[a-z_]+=")
_GLOBAL = {"--help", "--version", "--install-completion", "--show-completion"}


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command in a console block, from the command's name on."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r" (?:&&|\|) |\$\(", line):
            found = _PROMPT.match(part)
            if found:
                yield shlex.split(part[found.end() :].removesuffix(")"), comments=True)


def commands_of(page: Path) -> list[list[str]]:
    return [words for text in blocks(page, "console") for words in commands(text)]


def check(words: list[str]) -> None:
    """Parse a command as the real command line does."""
    name, *rest = words
    command = GROUP.commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(rest))
    if name == "train":
        settings = [word for word in rest if _SETTING.match(word)]
        config = rest[rest.index("--config") + 1] if "--config" in rest else None
        load_config(ROOT / config if config else None, settings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_real(page: Path) -> None:
    for words in commands_of(page):
        if not _GLOBAL & set(words):
            check(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_are_real(page: Path) -> None:
    """Of those only a part is said: the name and the options have to exist."""
    for text in re.findall(r"`eagle3data ([a-z][^`]*)`", prose(page)):
        words = text.split()
        names = words[0].split("|")
        assert set(names) <= set(COMMANDS), text
        known = {
            option
            for name in names
            for parameter in GROUP.commands[name].params  # type: ignore[attr-defined]
            for option in parameter.opts
        }
        assert {word for word in words if word.startswith("--")} <= known | _GLOBAL, text


def test_the_road_is_looked_at() -> None:
    names = [words[0] for words in commands_of(DOCS / "train.md")]
    assert names.count("train") == 5
    assert {"prepare", "extract", "validate", "evaluate", "export", "status"} <= set(names)
    shown = {words[0] for page in PAGES for words in commands_of(page)}
    assert set(COMMANDS) - shown <= {"bench"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_hides_in_blocks_that_are_not_looked_at(page: Path) -> None:
    assert not re.search(r"^ {4,}(\$ )?(eagle3data \w|import |from )", prose(page), re.MULTILINE)
    for text in blocks(page, ""):
        assert "eagle3data" not in text, "a fence without a language"
    assert not [text for text in blocks(page, "text") if re.search("^eagle3data ", text, re.M)]


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


def test_the_quick_start_is_the_demo() -> None:
    """`make demo` runs these commands, so the page's are run."""
    shown = commands_of(DOCS / "quickstart.md")
    run = demo.road(".cache/smollm2", Path(".demo"))
    assert shown[: len(run)] == run
    assert [words[0] for words in shown[len(run) :]] == ["export"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere_on_a_code_host(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in headings(target), f"{page.name}: {link}"


def test_readme_leads_to_every_page_and_the_docs_do() -> None:
    pages = {page.name for page in PAGES} - {README.name, "index.md"}
    reached = {link.partition("#")[0] for page in PAGES for link in links(page)}
    assert pages <= {os.path.basename(link) for link in reached}


def test_recipes_are_what_the_script_computes() -> None:
    page = recipes.PAGE.read_text()
    assert recipes.filled(page) == page, "python -m tools.recipes --write"
    # By hand, for one of them: 10,000 samples of 1,730 tokens, each to the end of a chunk of 32.
    assert pytest.approx(1.01e12, rel=1e-3) == 4 * 7168 * 2 * 10_000 * 1760
    assert "| Kimi-K2.5 | 1.01 TB | " in page
    assert "| Kimi-K2.5 | 61 | 7,168 | 2, 30, 58, 61 | 1, 29, 57 | 57,344 B |" in page


def test_the_peers_figures_are_those_of_the_runs() -> None:
    """What stands beside the peers is copied from where a command says how it was measured."""
    measured = [_cells(line) for line in _rows((DOCS / "speed.md").read_text())]
    told = (DOCS / "peers.md").read_text().partition("## Measured in one run")[2]
    rows = [_cells(line) for line in _rows(told)]
    assert len(rows) == 8
    for name, checks, ratio in rows:
        case = name.partition(" (")[0]
        found = [row for row in measured if row[0].startswith(case) and row[1] == checks]
        assert any(ratio in row for row in found), (name, ratio)


def _rows(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line for line in lines if re.search(r"\d\.\d\d", line)]


def _cells(line: str) -> list[str]:
    return [cell.replace("**", "").strip() for cell in line.strip("|").split("|")]
