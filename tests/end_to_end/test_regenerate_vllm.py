"""`regenerate` with the real vLLM: transformers' answers, and the same ones after a kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.extractor.vllm_processes import needs_vllm
from tests.killing import start
from tests.support import CONVERSATIONS, eagle3data

pytestmark = needs_vllm

ROWS = 9


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    source.write_text("".join(CONVERSATIONS.read_text().splitlines(keepends=True)[:ROWS]))
    return source


def _words(source: Path, model: Path, out: Path, engine: str = "vllm") -> list[str]:
    return [
        *("regenerate", str(source), "--model", str(model), "--out", str(out)),
        *("--engine", engine, "--dtype", "float32", "--max-new-tokens", "24"),
        *("--batch-size", "3"),
    ]


@pytest.fixture(scope="module")
def uninterrupted(questions: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "answers.jsonl"
    done = eagle3data(*_words(questions, smollm2, out), "--json")
    assert done.returncode == 0, done.stderr
    # vLLM has much to say; none of it belongs to the result.
    assert json.loads(done.stdout)["answers"] >= ROWS
    return out


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _after_first_window(words: list[str], out: Path) -> subprocess.Popen[str]:
    process = start(words)
    while process.poll() is None and not (out.exists() and out.stat().st_size):
        pass
    return process


def test_the_answers_are_those_of_transformers(
    questions: Path, smollm2: Path, tmp_path: Path, uninterrupted: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    done = eagle3data(*_words(questions, smollm2, out, "transformers"))
    assert done.returncode == 0, done.stderr
    found, expected = _lines(uninterrupted), _lines(out)
    assert [row["source"] for row in found] == [row["source"] for row in expected]
    assert {row["engine"] for row in found} == {"vllm"}
    same = sum(
        one["messages"] == other["messages"] for one, other in zip(found, expected, strict=True)
    )
    print(f"{same} of {ROWS} conversations are answered alike")
    assert same >= 0.8 * ROWS


def test_an_interrupted_run_gives_the_same_answers(
    questions: Path, smollm2: Path, tmp_path: Path, uninterrupted: Path
) -> None:
    """Killed while it wrote its last window: half a line, which is answered again."""
    out = tmp_path / "answers.jsonl"
    lines = uninterrupted.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[: ROWS - 2]) + lines[ROWS - 2][:40])
    done = eagle3data(*_words(questions, smollm2, out))
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == uninterrupted.read_bytes()


@pytest.mark.soak
def test_kill_9_and_continue(
    questions: Path, smollm2: Path, tmp_path: Path, uninterrupted: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    words = _words(questions, smollm2, out)
    process = _after_first_window(words, out)
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    kept = out.read_bytes()
    assert 0 < len(kept) < uninterrupted.stat().st_size
    psutil.wait_procs(started, timeout=60)
    assert not [child for child in started if child.is_running()]
    done = eagle3data(*words)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == uninterrupted.read_bytes()


@pytest.mark.soak
def test_ctrl_c_ends_the_engine(questions: Path, smollm2: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    process = _after_first_window(_words(questions, smollm2, out), out)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert not [child for child in started if child.is_running()]
    assert _lines(out)
