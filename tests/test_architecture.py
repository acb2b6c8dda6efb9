"""The house's promise: imports go down only, and inspecting needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "eagle3data"
FLOOR = {
    "schema": 0,
    "storage": 1,
    "writers": 2,
    "readers": 2,
    "interop": 2,
    "transfer": 3,
    "extractor": 3,
    "validation": 3,
    "trainer": 3,
    "bench": 4,
    "evaluation": 4,
    "view": 4,
    "cli": 5,
}
# Rooms on one floor don't know each other, but for what is named here.
NEIGHBOURS = {
    ("extractor", "validation"),  # a run is judged by its first samples as they are
    ("interop", "readers"),  # a plug-in gives others' trainers what the readers read
    ("trainer", "validation"),  # and a training starts on states that are those of their tokens
}


def _imports(path: Path) -> set[str]:
    """Rooms that a module imports, anywhere in it."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "eagle3data" and len(parts) > 1 and parts[1] in FLOOR:
                rooms.add(parts[1])
    return rooms


def test_every_room_has_a_floor() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(FLOOR)


@pytest.mark.parametrize("room", FLOOR)
def test_imports_go_down_only(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        for other in _imports(path) - {room}:
            down = FLOOR[other] < FLOOR[room] or (room, other) in NEIGHBOURS
            assert down, f"{path.relative_to(PACKAGE)} imports from {other}"


def test_the_check_sees_a_wrong_import(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from eagle3data.cli import main\n")
    assert _imports(wrong) == {"cli"}


@pytest.mark.parametrize(
    "statement",
    [
        "import eagle3data; eagle3data.open_dataset, eagle3data.DatasetWriter, eagle3data.Sample",
        "import eagle3data; eagle3data.validate",
        "import eagle3data.cli.main",
    ],
)
def test_no_torch_to_inspect(statement: str) -> None:
    probe = (
        f"{statement}; import sys; print({{'torch', 'transformers', 'vllm'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_help_waits_for_nothing_heavy() -> None:
    probe = """
import sys, typer
from eagle3data.cli.main import COMMANDS, app
group = typer.main.get_command(app)
assert "eagle3data.cli.import_" not in sys.modules, "a command was built that nobody asked for"
assert [group.commands[name].name for name in COMMANDS] == list(COMMANDS)
print({"numpy", "pyarrow", "pydantic", "fsspec", "torch"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
