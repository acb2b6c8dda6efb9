"""What holds GPU memory, read through a stand-in for `pynvml`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3data.cli.release import gpu_lines
from eagle3data.extractor import gpu_memory
from eagle3data.extractor.gpu_memory import (
    NO_DRIVER,
    DriverError,
    Nvml,
    open_driver,
    read_gpus,
    wait_for_gpu,
)
from eagle3data.extractor.release import release

GB = 10**9
NOBODY = 2**30
"""No process has this pid."""


class FakeError(Exception):
    """As `pynvml.NVMLError`."""


@dataclass
class FakeGpu:
    used: int = 0
    computing: list[tuple[int, int | None]] = field(default_factory=list)
    drawing: list[tuple[int, int | None]] = field(default_factory=list)


class FakeNvml:
    """As the module `pynvml`, on a machine with these GPUs; each look sees the next state."""

    NVMLError = FakeError
    nvmlMemory_v2 = 2  # noqa: N815

    def __init__(self, *states: list[FakeGpu], broken: str = "") -> None:
        self._states, self._broken = list(states), broken
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self._broken:
            raise FakeError(self._broken)
        self.open += 1
        self._gpus = self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, _: int) -> str:  # noqa: N802
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, index: int) -> str:  # noqa: N802
        return f"GPU-{index}abc"

    def nvmlDeviceGetMemoryInfo(self, index: int, version: int) -> Any:  # noqa: N802
        assert version == self.nvmlMemory_v2
        return SimpleNamespace(used=self._gpus[index].used, total=150 * GB)

    def nvmlDeviceGetComputeRunningProcesses(self, index: int) -> list[Any]:  # noqa: N802
        return self._listed(self._gpus[index].computing)

    def nvmlDeviceGetGraphicsRunningProcesses(self, index: int) -> list[Any]:  # noqa: N802
        return self._listed(self._gpus[index].drawing)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, index: int) -> list[Any]:  # noqa: N802
        raise FakeError("Not Supported")

    def _listed(self, held: list[tuple[int, int | None]]) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=count) for pid, count in held]


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_no_driver_means_nothing_to_release() -> None:
    report = read_gpus(None)
    assert report.is_free
    assert gpu_lines(report) == [NO_DRIVER]


def test_free() -> None:
    nvml = FakeNvml([FakeGpu(used=5 << 20), FakeGpu()])
    report = read_gpus(Nvml(nvml))
    assert report.is_free
    assert [gpu.index for gpu in report.gpus] == [0, 1]
    assert nvml.open == 0


def test_held_by_a_foreign_process() -> None:
    report = read_gpus(Nvml(FakeNvml([FakeGpu(), FakeGpu(GB, [(os.getpid(), GB)])])))
    (holder,) = report.holders
    assert (holder.pid, holder.bytes, holder.ours) == (os.getpid(), GB, False)
    assert report.ours == []
    assert not report.is_free
    text = "\n".join(gpu_lines(report))
    assert "GPU 1  NVIDIA H200  1 GB of 150 GB in use" in text
    assert f"{os.getpid()}  {holder.name}  1 GB  not ours" in text


def test_held_by_ours() -> None:
    report = read_gpus(Nvml(FakeNvml([FakeGpu(GB, [(NOBODY, None)])])), ours=[NOBODY])
    (holder,) = report.ours
    assert (holder.name, holder.bytes) == ("unknown", None)
    assert f"{NOBODY}  unknown  memory  an extraction's" in gpu_lines(report)[1]


def test_memory_of_processes_that_nobody_can_see() -> None:
    report = read_gpus(Nvml(FakeNvml([FakeGpu(used=3 * GB)])))
    assert not report.is_free
    assert "3 GB held by processes that can't be seen from here" in gpu_lines(report)[1]


def test_a_desktop_holds_nothing() -> None:
    report = read_gpus(Nvml(FakeNvml([FakeGpu(GB, drawing=[(NOBODY, GB)])])))
    assert report.is_free
    assert "only draws" in gpu_lines(report)[1]
    both = read_gpus(Nvml(FakeNvml([FakeGpu(GB, [(NOBODY, GB)], [(NOBODY, GB)])])))
    assert not both.is_free


@pytest.mark.parametrize(
    ("setting", "seen"),
    [("1", [1]), ("GPU-2a", [2]), ("2, 0", [0, 2]), ("", []), ("MIG-4", [0, 1, 2]), ("7", [])],
)
def test_only_the_gpus_that_are_visible(
    setting: str, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    report = read_gpus(Nvml(FakeNvml([FakeGpu(), FakeGpu(), FakeGpu()])))
    assert [gpu.index for gpu in report.gpus] == seen


def test_waits_until_the_driver_has_freed_the_memory() -> None:
    held, free = [FakeGpu(GB, [(NOBODY, GB)])], [FakeGpu(1 << 20)]
    nvml = FakeNvml(held, held, free)
    assert wait_for_gpu([NOBODY], 60.0, Nvml(nvml)).is_free
    stays = wait_for_gpu([NOBODY], 0.0, Nvml(FakeNvml(held)))
    assert [process.pid for process in stays.ours] == [NOBODY]


def test_does_not_wait_for_what_is_not_ours() -> None:
    nvml = FakeNvml([FakeGpu(GB, [(os.getpid(), GB)])])
    assert wait_for_gpu([NOBODY], 3600.0, Nvml(nvml)).holders
    assert wait_for_gpu([NOBODY], 3600.0, Nvml(FakeNvml([FakeGpu(GB)]))).gpus[0].unseen == GB


def test_a_driver_that_can_t_be_read() -> None:
    broken = Nvml(FakeNvml([], broken="Driver/library version mismatch"))
    with pytest.raises(DriverError, match="version mismatch"):
        read_gpus(broken)
    assert "version mismatch" in wait_for_gpu([], 0.0, broken).unread
    with pytest.raises(DriverError):
        release(broken, check=True)


def test_a_driver_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_has_library", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DriverError, match="pip install nvidia-ml-py"):
        open_driver()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_the_library_alone_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_has_library", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([], broken="Driver Not Loaded"))
    assert open_driver() is None


def test_release_says_who_is_left() -> None:
    report = release(Nvml(FakeNvml([FakeGpu(GB, [(os.getpid(), GB)])])), check=True)
    assert not report.is_free
    assert [process.pid for process in report.gpu.holders] == [os.getpid()]
