"""`extract` through the real vLLM: transformers' states, and nothing lost or left by any death."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pytest

from eagle3data import Dataset, open_dataset
from eagle3data.extractor.processes import has_ended
from tests.extractor.vllm_processes import needs_vllm
from tests.killing import start
from tests.storage.processes import with_mounts
from tests.support import CONVERSATIONS, eagle3data

pytestmark = needs_vllm

STEP_TOKENS = 80
"""What the engine may run at once: most prompts take several steps."""
SMALL_ENGINE = ("kv_cache_memory_bytes=300000000", f"max_num_batched_tokens={STEP_TOKENS}")
"""Small steps also leave something to the other of two extractions: an engine draws 8 ahead."""
GONE_WITHIN = 20.0


def _words(prompts: Path, model: Path, url: Path, *more: str) -> list[str]:
    command = ["extract", prompts, "--model", model, "--out", url, "--engine", "vllm"]
    engine = [word for text in SMALL_ENGINE for word in ("--engine-arg", text)]
    return [*map(str, command), *engine, "--engine-arg", "max_num_seqs=16", *more]


@pytest.fixture(scope="module")
def mixed(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short prompts, one of several conversations in a row, and one prompt twice."""
    folder = tmp_path_factory.mktemp("mixed")
    lines = CONVERSATIONS.read_text().splitlines()[:8]
    talks = [json.loads(line)["messages"] for line in lines]
    long = json.dumps({"messages": [message for talk in talks[:4] for message in talk]})
    source, out = folder / "mixed.jsonl", folder / "mixed.arrow"
    source.write_text("\n".join([*lines[:4], long, *lines[4:], lines[0]]) + "\n")
    done = eagle3data("prepare", source, "--model", smollm2, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def _rows(one: Dataset, other: Dataset) -> dict[int, npt.NDArray[np.float32]]:
    """Relative error of every row of the first set against the second, by layer."""
    found: dict[int, list[npt.NDArray[np.float32]]] = {layer: [] for layer in one.manifest.layers}
    for position in range(len(one)):
        here, there = one[position], other[position]
        for layer, rows in found.items():
            states, right = (
                sample.hidden_states[layer].astype(np.float32) for sample in (here, there)
            )
            rows.append(np.linalg.norm(states - right, axis=1) / np.linalg.norm(right, axis=1))
    return {layer: np.concatenate(rows) for layer, rows in found.items()}


def _require_same_samples(one: Dataset, other: Dataset) -> None:
    for name in (
        "sample_id",
        "token_offset",
        "length",
        "input_ids",
        "loss_mask",
        "source",
        "split",
    ):
        assert one.index[name].equals(other.index[name]), name


Begin = Callable[[list[str]], "subprocess.Popen[str]"]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Starts commands, two at a time in most tests; none outlives its test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    begun = []

    def begin_command(words: list[str]) -> subprocess.Popen[str]:
        begun.append(start(words))
        return begun[-1]

    yield begin_command
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_float32_states_are_transformers_own(
    begin: Begin, smollm2: Path, mixed: Path, tmp_path: Path
) -> None:
    """Prompts longer than a step's tokens are run in pieces; the states must not show it."""
    urls = [tmp_path / "vllm", tmp_path / "transformers"]
    more = ("--compute-dtype", "float32", "--shard-tokens", "1024")
    process = begin(_words(mixed, smollm2, urls[0], *more))
    plain = ["extract", mixed, "--model", smollm2, "--out", urls[1], *more]
    assert eagle3data(*plain, "--engine", "transformers").returncode == 0
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert f"max_num_scheduled_tokens is set to {STEP_TOKENS} " in stderr
    found, expected = (open_dataset(str(url)) for url in urls)
    _require_same_samples(found, expected)
    assert found.manifest.capture.engine == "vllm"
    assert found.manifest.capture.engine_version.startswith("vllm 0.")
    lengths = found.index["length"].to_numpy()
    assert lengths.min() <= STEP_TOKENS < 8 * STEP_TOKENS < lengths.max()
    names = found.index["sample_id"].to_pylist()
    assert f"{names[0]}-2" in names
    for layer, rows in _rows(found, expected).items():
        print(f"float32, layer {layer}: rows' error, {_quantiles(rows)}")
        assert np.quantile(rows, 0.999) < 1e-3, layer
    assert found.index["witness_token"].equals(expected.index["witness_token"])
    logprobs = [each.index["witness_logprob"].to_numpy() for each in (found, expected)]
    assert np.abs(logprobs[0] - logprobs[1]).max() < 1e-3


def _quantiles(rows: npt.NDArray[np.float32]) -> str:
    median, most = np.quantile(rows, [0.5, 0.9])
    return f"median {median:.1e}, 90 % {most:.1e}, largest {rows.max():.1e}"


def _committed(url: Path) -> dict[str, bytes]:
    """Every array object of the shards whose index part is there, by name."""
    numbers = {str(int(part.stem)) for part in (url / "index").glob("0*.arrow")}
    names = {path: str(path.relative_to(url)) for path in url.rglob("c/**/*") if path.is_file()}
    return {
        name: path.read_bytes()
        for path, name in names.items()
        if name.partition("/c/")[2].split("/")[0] in numbers
    }


def _committers(url: Path) -> set[int]:
    """Processes that committed a shard."""
    parts = (url / "index").glob("0*.arrow")
    metadata = (pa.ipc.open_file(str(part)).schema.metadata[b"eagle3data"] for part in parts)
    return {json.loads(facts)["process"] for facts in metadata}


def _wait_for_commit(process: subprocess.Popen[str], url: Path) -> None:
    """Until it has committed a shard of its own; it has more in hand then."""
    while process.poll() is None and process.pid not in _committers(url):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()


def _started_by(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """Its engine's processes, by what they call themselves, and all others."""
    family = psutil.Process(process.pid).children(recursive=True)
    found = {f"{one.name()} {one.pid}": one for one in family}
    assert any(name.startswith("VLLM::") for name in found), found
    return found


def _require_gone(started: dict[str, psutil.Process]) -> None:
    psutil.wait_procs(list(started.values()), timeout=GONE_WITHIN)
    assert [name for name, one in started.items() if not has_ended(one)] == []


def _kill(started: dict[str, psutil.Process], role: str) -> None:
    next(one for name, one in started.items() if name.startswith(role)).kill()


def _require_death_told(process: subprocess.Popen[str]) -> None:
    """An engine died in the middle of its work: its command says so, and how to go on."""
    _, stderr = process.communicate()
    assert process.returncode == 2, stderr
    assert "run the same command again to continue" in stderr


def test_deaths_lose_nothing_and_leave_nothing(
    begin: Begin, smollm2: Path, prompts: Path, states: str, tmp_path: Path
) -> None:
    """Two extractions of one plan: the engine of one is killed, and all of the other. Two more:
    one gets Ctrl-C, the other finishes, and has the same data set in the end."""
    url = tmp_path / "set"
    words = _words(prompts, smollm2, url)
    one, two = begin(words), begin(words)
    _wait_for_commit(one, url)
    families = [_started_by(process) for process in (one, two)]
    two.kill()
    _kill(families[0], "VLLM::EngineCore")
    _require_death_told(one)
    two.communicate()
    for family in families:
        _require_gone(family)
    committed = _committed(url)
    assert committed

    three, four = begin(words), begin([*words, "--json"])
    _wait_for_commit(three, url)
    started = _started_by(three)
    three.send_signal(signal.SIGINT)
    _, stderr = three.communicate()
    assert three.returncode == 130, stderr
    assert "Run the same command again to continue" in stderr
    _require_gone(started)

    stdout, stderr = four.communicate()
    assert four.returncode == 0, stderr
    # vLLM has much to say; none of it belongs to the result.
    report: dict[str, Any] = json.loads(stdout)
    assert report["committed"] == report["shards"] > report["written"] > 0
    assert committed.items() <= _committed(url).items()
    _require_equal_in_bfloat16(open_dataset(str(url)), open_dataset(states))


def _require_equal_in_bfloat16(found: Dataset, expected: Dataset) -> None:
    """As `test_states_equal_transformers`: most rows; a few cancel and can't be compared."""
    engines = [each.manifest.capture.engine for each in (found, expected)]
    assert engines == ["vllm", "transformers"]
    _require_same_samples(found, expected)
    for layer, rows in _rows(found, expected).items():
        print(f"bfloat16, layer {layer}: rows' error, {_quantiles(rows)}")
        median, most = np.quantile(rows, [0.5, 0.9])
        assert median < 0.03, layer
        assert most < 0.06, layer
    tokens = [each.index["witness_token"].to_numpy() for each in (found, expected)]
    assert np.mean(tokens[0] == tokens[1]) >= 0.9


@pytest.mark.parametrize("name", ["pipeline_parallel_size", "data_parallel_size"])
def test_what_was_never_run_is_refused(
    smollm2: Path, prompts: Path, tmp_path: Path, name: str
) -> None:
    done = eagle3data(*_words(prompts, smollm2, tmp_path / "set", "--engine-arg", f"{name}=2"))
    assert done.returncode == 2
    assert f"{name}=2: extraction was never run like that" in done.stderr
    assert "--tensor-parallel-size" in done.stderr


@pytest.mark.soak
def test_a_worker_that_is_killed_ends_the_engine(
    begin: Begin, smollm2: Path, prompts: Path, tmp_path: Path
) -> None:
    url = tmp_path / "set"
    process = begin(_words(prompts, smollm2, url))
    _wait_for_commit(process, url)
    started = _started_by(process)
    _kill(started, "VLLM::Worker")
    _require_death_told(process)
    _require_gone(started)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_the_model_is_loaded(
    begin: Begin, smollm2: Path, prompts: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = begin(_words(prompts, smollm2, tmp_path / "set"))
    family = psutil.Process(process.pid)
    while not any(one.name().startswith("VLLM::") for one in family.children(recursive=True)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    started = _started_by(process)
    process.send_signal(number)
    # They close its standard error when they end.
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), stderr
    _require_gone(started)


@pytest.mark.soak
def test_a_full_disk_ends_the_run_and_its_engine(
    smollm2: Path, prompts: Path, states: str, tmp_path: Path
) -> None:
    """A small file system that something else fills meanwhile; then there is room again."""
    words = _words(prompts, smollm2, tmp_path / "disk" / "set")
    (tmp_path / "disk").mkdir()
    script = tmp_path / "fill.py"
    script.write_text(FILL)
    command = [sys.executable, str(script), str(tmp_path / "disk"), *words]
    done = with_mounts(f"mount -t tmpfs -o size=120m none '{tmp_path / 'disk'}'", command)
    assert done.returncode == 0, done.stdout + done.stderr
    _require_equal_in_bfloat16(open_dataset(str(tmp_path / "copy")), open_dataset(states))


FILL = """
import shutil, subprocess, sys
from pathlib import Path
import psutil
disk, words = Path(sys.argv[1]), sys.argv[2:]
command = [sys.executable, "-m", "eagle3data.cli.main", *words]
process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
parts = disk / "set" / "index"
while process.poll() is None and len(list(parts.glob("0*.arrow"))) < 3:
    pass
started = psutil.Process(process.pid).children(recursive=True)
with (disk / "other").open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 16))
    except OSError:
        pass
stderr = process.communicate()[1]
assert process.returncode == 2, stderr
assert "free some space" in stderr or "no space left" in stderr, stderr
left = psutil.wait_procs(started, timeout=20)[1]
assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
assert 3 <= len(list(parts.glob("0*.arrow"))) < 20
(disk / "other").unlink()
subprocess.run(command, check=True)
shutil.copytree(disk / "set", disk.parent / "copy")
"""


@pytest.mark.soak
def test_two_extractions_share_one_plan(
    begin: Begin, smollm2: Path, prompts: Path, states: str, tmp_path: Path
) -> None:
    url = tmp_path / "set"
    running = [begin([*_words(prompts, smollm2, url), "--json"]) for _ in range(2)]
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    reports = [json.loads(stdout) for stdout, _ in said]
    assert sum(report["written"] for report in reports) == reports[0]["shards"]
    assert all(report["written"] for report in reports)
    _require_equal_in_bfloat16(open_dataset(str(url)), open_dataset(states))
