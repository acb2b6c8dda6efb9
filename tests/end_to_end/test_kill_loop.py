"""Writers killed -9 at random moments, on disk and on S3: what is committed stays right."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3data import DatasetWriter, open_dataset
from eagle3data.validation.repair import repair
from eagle3data.validation.validate import validate
from tests.support import random_sample, same_sample, small_manifest

SAMPLES = 2000
WRITE = """
import sys
from eagle3data import DatasetWriter, open_dataset
from tests.support import random_sample, small_manifest
url, manifest = sys.argv[1], small_manifest()
have = set(open_dataset(url).index["sample_id"].to_pylist())
with DatasetWriter.resume(url, queue_bytes=int(sys.argv[2])) as writer:
    print("writing", flush=True)
    for number in range(int(sys.argv[3])):
        if f"s{number}" not in have:
            writer.append(random_sample(f"s{number}", 20 + number % 40, number, manifest))
"""


def _writer(url: str, seed: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITE, url, str(seed % 2 * 10_000), str(SAMPLES)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True)


def _committed(url: str, known: set[str]) -> set[str]:
    """Ids of the set, after checking that `known` is among them and that new ones are right."""
    manifest = small_manifest()
    dataset = open_dataset(url)
    names = {str(name) for name in dataset.index["sample_id"].to_pylist()}
    assert len(names) == len(dataset)
    assert known <= names
    for name in names - known:
        number = int(name[1:])
        expected = random_sample(name, 20 + number % 40, number, manifest)
        assert same_sample(dataset.get(name), expected)
    return names


def _kill_many_times(url: str, kills: int, longest: float) -> int:
    with DatasetWriter.create(url, small_manifest()):
        pass
    rng = random.Random(kills)
    committed: set[str] = set()
    killed = 0
    for seed in range(kills):
        victim = _writer(url, seed)
        assert victim.stdout is not None
        victim.stdout.readline()
        time.sleep(rng.random() * longest)  # the moment is what is random here
        killed += victim.poll() is None
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        committed = _committed(url, committed)
    done = repair(url)
    assert {action.kind for action in done.actions} <= {
        "remove_orphan",
        "release_claim",
        "remove_segment",
        "remove_temporary",
        "abort_upload",
        "gather_index",
    }
    committed = _committed(url, committed)
    report = validate(url, "full")
    # Masks of random samples are not what these runs are about.
    assert {finding.kind for finding in report.findings} <= {"mask_empty"}
    print(f"{url}: killed {killed} times, {len(committed)} samples committed on the way")
    return killed


def test_on_disk(tmp_path: Path) -> None:
    assert _kill_many_times(str(tmp_path / "set"), 4, 1.0) >= 2


def test_on_s3(bucket: str) -> None:
    assert _kill_many_times(f"{bucket}/killed", 3, 2.0) >= 1


@pytest.mark.soak
def test_sixty_times_on_disk(tmp_path: Path) -> None:
    assert _kill_many_times(str(tmp_path / "set"), 60, 0.5) >= 50


@pytest.mark.soak
def test_sixty_times_on_s3(bucket: str) -> None:
    assert _kill_many_times(f"{bucket}/soaked", 60, 2.0) >= 50
