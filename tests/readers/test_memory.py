"""How much memory a loader takes, and that it lets go when it is interrupted: own processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import Manifest
from tests.support import random_samples, write_set

MIB = 1 << 20
BUDGET, HIDDEN = 4096, 256

_EPOCHS = """
import json, sys
from pathlib import Path
from eagle3data import StreamingLoader, open_dataset

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

loader = StreamingLoader(
    open_dataset(sys.argv[1]), token_budget=4096, threads=4, prefetch_bytes=int(sys.argv[2])
)
before, most, batch_bytes, steps = anonymous(), 0, 0, 0
for _ in range(2):
    for batch in loader:
        most, steps = max(most, anonymous()), steps + 1
        batch_bytes = batch.hidden_states.nbytes
print(json.dumps({"taken": most - before, "batch": batch_bytes, "steps": steps}))
"""

_INTERRUPTED = """
import sys, threading
from eagle3data import StreamingLoader, open_dataset
loader = StreamingLoader(open_dataset(sys.argv[1]), token_budget=4096, threads=4)
try:
    while True:
        for batch in loader:
            print("step", flush=True)
except KeyboardInterrupt:
    print("interrupted", [one.name for one in threading.enumerate()], flush=True)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    manifest = Manifest.synthetic(
        hidden_size=HIDDEN,
        num_hidden_layers=12,
        vocab_size=500,
        axis=TokenAxis(shard_tokens=16_384, chunk_tokens=64),
    )
    samples = random_samples(100, manifest, longest=2000)
    return write_set(tmp_path_factory.mktemp("memory") / "set", samples, manifest)


@pytest.mark.parametrize("prefetch", [0, 64 * MIB])
def test_an_epoch_takes_no_more_than_is_said(url: str, prefetch: int) -> None:
    """Batches ahead, the one in hand and the one that follows it; mapped files are the kernel's."""
    done = subprocess.run(
        [sys.executable, "-c", _EPOCHS, url, str(prefetch)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    ahead = max(2, prefetch // found["batch"])
    assert found["steps"] > 2 * (ahead + 2)
    # Threads' stacks, the index and the plan: what doesn't grow with batches.
    assert found["taken"] <= (ahead + 2) * found["batch"] + 24 * MIB
    assert found["taken"] >= ahead * found["batch"] // 2


def test_an_interrupt_ends_the_epoch_and_its_threads(url: str) -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, url], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "step\n"
    running.send_signal(signal.SIGINT)
    rest, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    assert rest.splitlines()[-1] == "interrupted ['MainThread']"
