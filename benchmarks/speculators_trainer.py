"""speculators' own trainer, its metrics written down; on a machine without an accelerator too.

    python -m benchmarks.speculators_trainer METRICS.jsonl --data-path ... (their flags)

Two things of theirs take an accelerator for granted, and are answered here where there is none: the
device is given by number, and timers wait for it. Nothing of what is computed is touched.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from benchmarks.float32_muon import use_float32
from eagle3data.interop.speculators_train import main as train
from eagle3data.schema.machine import has_bfloat16_units

FLAGS = ["--draft-attn-impl", "sdpa", "--loss-implementation", "eager", "--num-workers", "0"]
"""What runs on a CPU: flex attention has no backward pass there, and the fused losses need Triton.
Workers are processes that import torch anew, which would be most of a short run's seconds. With an
accelerator the same, so that runs of both kinds compare; what is learned doesn't depend on it."""


class _Recorder(logging.Handler):
    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "speculators.metrics" or not isinstance(record.msg, dict):
            return
        if kinds := {"train", "val"} & record.msg.keys():
            line = {"kind": kinds.pop(), "time": time.perf_counter(), **record.msg}
            self._file.write(json.dumps(line, default=str) + "\n")


def main(words: list[str]) -> None:
    """Train; a line of `METRICS.jsonl` a step and an evaluation."""
    metrics, *theirs = words
    import eagle3data.interop.speculators_backend  # noqa: F401

    if not torch.accelerator.is_available():
        _use_cpu()
    with Path(metrics).open("w") as file:
        logging.getLogger().addHandler(_Recorder(file))
        train([*FLAGS, *theirs])


def _use_cpu() -> None:
    import speculators.train.trainer

    torch.accelerator.synchronize = lambda *_: None
    trainer: Any = speculators.train.trainer
    trainer.get_local_rank = lambda: torch.device("cpu")
    if not has_bfloat16_units():
        use_float32()


if __name__ == "__main__":
    main(sys.argv[1:])
