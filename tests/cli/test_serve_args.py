"""`eagle3data serve-args`: one line that shells hand on as it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support import Command


def test_pasted_and_substituted_it_is_the_same(
    smollm2: Path, command: Command, tmp_path: Path
) -> None:
    done = command("serve-args", smollm2)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "vllm serve" in done.stderr
    (tmp_path / "line").write_text(line)
    for script in (f"printf '%s\\n' {line}", "printf '%s\\n' $(cat line)"):
        read = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert read.stdout.splitlines() == line.split(" ")


def test_layers_and_address(smollm2: Path, command: Command) -> None:
    words = ["--layers", "1,29", "--numbering", "sglang", "--listen", "tcp:0.0.0.0:7000"]
    found = json.loads(command("serve-args", smollm2, *words, "--json").stdout)
    assert found["layers"] == [2, 30]
    assert found["listen"] == "tcp:0.0.0.0:7000"
    assert any(word.endswith("layer_ids=[2,30]") for word in found["arguments"])


@pytest.mark.parametrize(
    ("words", "said"), [(("--layers", "31"), "31"), (("--listen", "8000"), "tcp:HOST:PORT")]
)
def test_refused(smollm2: Path, command: Command, words: tuple[str, str], said: str) -> None:
    done = command("serve-args", smollm2, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_two_servers_share_no_secret(smollm2: Path, command: Command) -> None:
    one, other = (command("serve-args", smollm2).stdout for _ in range(2))
    assert one != other
