"""What commands print fits the window, wherever it is shown, and steers no terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import typer
from rich.cells import cell_len
from rich.console import Console

from eagle3data import Sample
from eagle3data.cli import console
from eagle3data.cli.info import info
from eagle3data.cli.main import reported
from eagle3data.cli.options import one_of
from eagle3data.cli.show import show
from eagle3data.cli.stats import stats
from eagle3data.cli.status import _picture, status
from eagle3data.readers.progress import Watch
from eagle3data.schema.words import significant
from eagle3data.storage.root import Root
from tests.support import random_samples, small_manifest, write_set

HOSTILE = "evil\x1b[2J\x07\nname\u202e"
WIDTHS = (30, 38, 80, 200)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nine samples; the last one's source would clear the screen."""
    manifest = small_manifest()
    samples = random_samples(9, manifest)
    last = samples[-1]
    samples[-1] = Sample(
        hidden_states=last.hidden_states,
        input_ids=last.input_ids,
        loss_mask=last.loss_mask,
        sample_id="last",
        source=HOSTILE,
    )
    return write_set(tmp_path_factory.mktemp("small") / "set", samples, manifest)


def _shown(monkeypatch: pytest.MonkeyPatch, width: int | None, command: str, url: str) -> str:
    """What a command prints on a terminal so wide; None is a pipe."""
    text = io.StringIO()
    monkeypatch.setattr(console.out, "_file", text)
    monkeypatch.setattr(console.out, "_force_terminal", width is not None)
    monkeypatch.setattr(console.out, "_width", width or 80)
    match command:
        case "info":
            info(url)
        case "stats":
            stats(url)
        case "status":
            status(url)
        case _:
            show(url, "last")
    return text.getvalue()


@pytest.mark.parametrize("command", ["info", "stats", "status", "show"])
def test_every_width_says_the_same_and_nothing_passes_the_edge(
    command: str, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = _shown(monkeypatch, None, command, small)
    for width in WIDTHS:
        text = _shown(monkeypatch, width, command, small)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        assert "…" not in text
        # However lines are broken and columns folded, each number and word is there; the free disk
        # changes meanwhile, and a path may be cut anywhere.
        told = set(re.findall(r"\S+", piped)) - set(re.findall(r"\S*[/.]\S*", piped))
        missing = {word for word in told if word not in text.replace("\n", " ")}
        assert not missing, (width, missing)


def test_a_wide_window_and_a_pipe_have_a_line_a_fact(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (None, 200):
        lines = _shown(monkeypatch, width, "info", small).splitlines()
        assert [line.split()[0] for line in lines][:3] == ["data", "target", "layers"]
        values = {re.match(r"\w+( set)?\s+", line)[0] for line in lines}  # type: ignore[index]
        assert {len(start) for start in values} == {12}
    table = _shown(monkeypatch, 80, "stats", small).splitlines()[-5:]
    assert len({len(line) for line in table}) == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_what_status_follows_with_has_every_line(width: int, small: str) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, record=True)
    screen.print(_picture(Watch(Root(small)).look()))
    lines = screen.export_text().splitlines()
    assert [line for line in lines if line.startswith("shards ")]
    assert max(map(cell_len, lines)) <= width


def test_a_narrow_window_gets_records(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _shown(monkeypatch, 38, "stats", small).splitlines()
    assert [line for line in lines if line.startswith("layer ")] == [
        "layer 2",
        "layer 6",
        "layer 9",
        "layer 12",
    ]
    assert lines.count("  nan          0") == 4


@pytest.mark.parametrize("width", [None, *WIDTHS])
def test_nothing_of_a_data_set_steers_the_terminal(
    width: int | None, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _shown(monkeypatch, width, "show", small)
    assert not set("\x1b\x07\u202e") & set(text)
    assert r"evil\x1b[2J\x07\nname\u202e" in text.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.0341, "3.03"),
        (78.0, "78.0"),
        (115.2, "115"),
        (24896, "24,896"),
        (0.01234, "0.0123"),
        (-0.5, "-0.500"),
        (1e-7, "1.00e-07"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_magnitudes_have_three_digits(value: float, text: str) -> None:
    assert significant(value) == text


def _in_a_terminal(words: list[str], columns: int, **environment: str) -> str:
    """All that a command writes to a terminal of this width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    unset = {"COLUMNS", "NO_COLOR", "FORCE_COLOR"}
    clean = {name: value for name, value in os.environ.items() if name not in unset}
    with subprocess.Popen(
        [sys.executable, "-m", "eagle3data.cli.main", *words],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**clean, "TERM": "xterm-256color", **environment},
    ) as process:
        os.close(child)
        written = b""
        while piece := _read(parent):
            written += piece
    os.close(parent)
    assert process.returncode == 0
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # The last process has closed its side.
        return b""


def test_colours_are_for_terminals_and_no_color_is_heeded(small: str) -> None:
    green = "\x1b[1;32m"
    text = _in_a_terminal(["show", small, "last"], 38)
    assert green in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(cell_len, plain.splitlines())) <= 38
    bare = _in_a_terminal(["show", small, "last"], 80, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", bare)
    # The mask is told without colours then.
    assert "[[" in bare


def test_the_shell_completes() -> None:
    def offered(line: str) -> list[str]:
        environment = {"_EAGLE3DATA_COMPLETE": "complete_bash", "COMP_WORDS": line}
        done = subprocess.run(
            [Path(sys.executable).with_name("eagle3data")],
            env={**os.environ, **environment, "COMP_CWORD": str(line.count(" "))},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert offered("eagle3data st") == ["status", "stats"]
    assert offered("eagle3data extract p.arrow --codec ") == ["none", "lz4", "pcodec"]
    # A process each takes its seconds; the other options with a few values offer them so too.
    assert one_of("quick", "full", "semantic", "all")("s") == ["semantic"]


def test_a_path_like_a_style_is_said_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Styles are written in brackets, and so are some folders."""
    folder = tmp_path / "[" / "bold]"
    with pytest.raises(typer.Exit):
        reported(info)(str(folder))
    assert f"{folder} holds no data set" in capsys.readouterr().err
    monkeypatch.setattr(console.err, "_force_terminal", True)
    monkeypatch.setattr(console.err, "_width", 40)
    with pytest.raises(typer.Exit):
        reported(info)(f"{folder}/evil\x1b[2J")
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert max(map(len, told.splitlines())) <= 40
    assert "there is no zarr.json below it" in " ".join(told.split())
