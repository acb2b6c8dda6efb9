"""How a cluster is divided among replicas, and what a replica checks before it works."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from eagle3data.extractor.engines.choice import EngineOptions
from eagle3data.extractor.on_ray import divide, extract_on_ray
from eagle3data.extractor.replica import Share
from eagle3data.extractor.run import ExtractOptions
from eagle3data.schema.errors import ClusterError, CorruptionError, InputError, SampleError

GPU_NODE, CPU_NODE, HEAD = {"GPU": 8.0, "CPU": 96.0}, {"CPU": 16.0}, {"memory": 1e9}


@pytest.mark.parametrize(
    ("nodes", "replicas", "devices", "expected"),
    [
        ([GPU_NODE, GPU_NODE], None, 8, (2, Share(8, 1))),
        ([GPU_NODE, CPU_NODE], None, 4, (2, Share(4, 1))),
        ([GPU_NODE, {"GPU": 2.0}], 1, 3, (1, Share(3, 1))),
        ([HEAD, CPU_NODE, CPU_NODE], None, 1, (2, Share(0, 16))),
        ([CPU_NODE, {"CPU": 6.0}], 4, 1, (4, Share(0, 3))),
        ([{"CPU": 1.0}] * 3, 2, 1, (2, Share(0, 1))),
    ],
)
def test_division(
    nodes: list[dict[str, float]], replicas: int | None, devices: int, expected: tuple[int, Share]
) -> None:
    assert divide(nodes, replicas, devices) == expected


@pytest.mark.parametrize(
    ("nodes", "replicas", "devices"),
    [
        ([GPU_NODE], None, 16),  # engines over several nodes are not run
        ([GPU_NODE, {"GPU": 2.0}], 4, 3),
        ([CPU_NODE, HEAD], 17, 1),
        ([HEAD], None, 1),
    ],
)
def test_too_small_a_cluster(
    nodes: list[dict[str, float]], replicas: int | None, devices: int
) -> None:
    with pytest.raises(ClusterError, match="has room for"):
        divide(nodes, replicas, devices)


def test_no_replica_at_all() -> None:
    with pytest.raises(InputError, match="at least 1"):
        divide([CPU_NODE], 0, 1)


def _extract(options: ExtractOptions, folder: Path) -> None:
    extract_on_ray(
        str(folder / "prompts.arrow"),
        "model",
        str(folder / "set"),
        options,
        replicas=None,
        on_start=lambda *_: None,
        on_tokens=lambda *_: None,
        on_wait=lambda *_: None,
        on_notice=lambda *_: None,
    )


def test_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'eagle3data\[ray\]'"):
        _extract(ExtractOptions(), tmp_path)


def test_no_servers_on_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ExtractOptions(engine=EngineOptions(endpoint="http://localhost:8000"))
    with pytest.raises(InputError, match="leave one out"):
        _extract(options, tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        InputError("a file that is not there"),
        SampleError("nonfinite", "a", "layer 3 is not finite"),
        CorruptionError("checksum", "chunk 4 is wrong", url="s3://b/set", shard=3),
    ],
)
def test_errors_travel_as_they_are(error: Exception) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.__dict__ == error.__dict__
