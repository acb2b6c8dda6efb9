"""Several processes on the CPU, started by torchrun: one process's run, with accumulation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3data.schema.errors import InputError
from eagle3data.trainer.checkpoint import load_last
from eagle3data.trainer.config import load_config
from eagle3data.trainer.inputs import gather
from eagle3data.trainer.loop import train
from eagle3data.trainer.parallel import processes
from tests.trainer import small


def torchrun(
    made: tuple[str, str], out: Path, *settings: str, processes: int = 2, script: str | None = None
) -> subprocess.CompletedProcess[str]:
    command = ["-m", "eagle3data.cli.main"] if script is None else [script]
    # fmt: off
    return subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={processes}", *command,
            "train", made[0], "--model", made[1], "--out", str(out), *small.SETTINGS, *settings,
        ],
        capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    # fmt: on


def curve(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "steps" in line]  # not what was known before the first
    return [{k: v for k, v in line.items() if k not in {"seconds", "waited"}} for line in steps]


def assert_same_run(one: Path, other: Path) -> None:
    """Equal but for the order of sums: records, best, parameters."""
    for mine, theirs in zip(curve(one), curve(other), strict=True):
        assert mine.keys() == theirs.keys()
        assert mine.pop("kind") == theirs.pop("kind")
        steps = zip(mine.pop("steps"), theirs.pop("steps"), strict=True)
        assert mine == pytest.approx(theirs, rel=1e-4)
        for step, its in steps:
            assert step == pytest.approx(its, rel=1e-4)
    saved, other_saved = load_last(one), load_last(other)
    assert saved is not None
    assert other_saved is not None
    assert saved.step == other_saved.step
    for name, tensor in saved.draft.parameters.items():
        torch.testing.assert_close(tensor, other_saved.draft.parameters[name], rtol=1e-3, atol=1e-5)


DYING = """
import os, signal
from eagle3data.cli.main import app
from eagle3data.trainer.loop import Run

whole = Run.train_step

def dying(run, packs, **more):
    if run.world.rank == 1 and run.step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    whole(run, packs, **more)

Run.train_step = dying
app()
"""


def test_processes_equal_one_with_accumulation_whatever_becomes_of_them(
    made: tuple[str, str], tmp_path: Path
) -> None:
    """Two by DDP until one is killed in the second epoch; then two by FSDP2, or one.

    Gradients are clipped, and each epoch ends in a step in which one process has no pack.
    """
    settings = ["train.epochs=2", "optimizer.max_grad_norm=0.05"]
    one = load_config(None, [*small.SETTINGS, *settings, "train.accumulation=2"])
    train(*made, tmp_path / "whole", one)
    assert len(gather(*made, one).loader.packs) == 9
    norms = [record["grad_norm"] for record in curve(tmp_path / "whole") if "grad_norm" in record]
    assert len(norms) == 10
    assert min(norms) > 0.05
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    died = torchrun(made, tmp_path / "run", *settings, script=str(script))
    assert died.returncode == 1
    assert "Signal 9" in died.stderr
    saved = load_last(tmp_path / "run")
    assert saved is not None
    assert saved.step == 6
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    done = torchrun(made, tmp_path / "run", *settings, "train.parallel=fsdp2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("parameters") == 1  # the summary, of the first process alone
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    train(*made, tmp_path / "again", one)
    assert_same_run(tmp_path / "again", tmp_path / "whole")


def test_steps_are_counted_anew_for_another_number_of_packs(
    made: tuple[str, str], tmp_path: Path
) -> None:
    """Each sample still comes once an epoch when what is left is packed into larger steps."""
    whole = train(*made, tmp_path / "whole", load_config(None, [*small.SETTINGS, "train.epochs=2"]))
    one = load_config(None, [*small.SETTINGS, "train.epochs=2"])

    def stop(record: dict[str, Any]) -> None:
        if record["kind"] == "train" and record["step"] == 3:
            signal.raise_signal(signal.SIGINT)

    stopped = train(*made, tmp_path / "run", one, report=stop)
    assert stopped.interrupted
    three = load_config(None, [*small.SETTINGS, "train.epochs=2", "train.accumulation=3"])
    outcome = train(*made, tmp_path / "run", three)
    assert outcome.summary["tokens"] == whole.summary["tokens"]
    assert 3 < outcome.summary["steps"] < whole.summary["steps"]
    assert outcome.summary["steps"] == outcome.summary["total_steps"]


@pytest.mark.parametrize(
    ("environment", "parallel", "message"),
    [
        ({}, "fsdp2", "not started by torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}, "none", "2 processes"),
    ],
)
def test_processes_that_cannot_be_are_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], parallel: str, message: str
) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message), processes(parallel, torch.device("cpu")):
        pytest.fail("it began")
