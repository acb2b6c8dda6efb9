"""Who holds GPU memory, as the NVIDIA driver says it."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from eagle3data.extractor.processes import ProcessFacts, is_ours
from eagle3data.schema.errors import InputError

NO_DRIVER = "no NVIDIA driver: nothing to release"
_BASELINE_BYTES = 64 << 20
"""What a GPU that nobody uses may say is used, beside what the driver reserves for itself: the
smallest CUDA context takes more."""
_POLL_SECONDS = 0.25
_SETTLED_SECONDS = 2.0


class DriverError(InputError):
    """There is a GPU, and what holds its memory can't be read."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU.

    Attributes:
        pid: as the driver gives it.
        name: of the process; `unknown` where it can't be seen from here.
        command: its command line, shortened.
        bytes: it holds; None where the driver doesn't say.
        ours: it is part of an extraction.
        is_display: it only draws, as a desktop does.
    """

    pid: int
    name: str = "unknown"
    command: str = ""
    bytes: int | None = None
    ours: bool = False
    is_display: bool = False


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        index: as the driver counts.
        name: of the model.
        used: bytes in use, without the driver's own reserve.
        total: bytes.
        processes: that hold some, by pid.
    """

    index: int
    name: str
    used: int
    total: int
    processes: tuple[GpuProcess, ...] = ()

    @property
    def unseen(self) -> int:
        """Bytes in use by nobody that the driver names: by other containers, say."""
        return self.used if not self.processes and self.used > _BASELINE_BYTES else 0


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """What holds memory of the GPUs that this process may use.

    Attributes:
        gpus: one by one; none where there is no driver.
        unread: why the driver wasn't read, or empty.
    """

    gpus: tuple[Gpu, ...] = ()
    unread: str = ""

    @property
    def holders(self) -> list[GpuProcess]:
        """Processes that hold memory to compute with."""
        return [found for gpu in self.gpus for found in gpu.processes if not found.is_display]

    @property
    def ours(self) -> list[GpuProcess]:
        """Those of an extraction among them."""
        return [process for process in self.holders if process.ours]

    @property
    def is_free(self) -> bool:
        """Whether nobody holds any, seen or unseen."""
        return not self.holders and not any(gpu.unseen for gpu in self.gpus)


class Driver(Protocol):
    """What can say who holds GPU memory."""

    def gpus(self) -> list[Gpu]:
        """The GPUs that this process may use, with the pids on them.

        Raises:
            DriverError: they can't be read.
        """


class Nvml:
    """The NVIDIA driver through its management library."""

    def __init__(self, module: Any) -> None:
        """Take the functions from a module: `pynvml`, of the package `nvidia-ml-py`."""
        self._nvml = module

    def gpus(self) -> list[Gpu]:
        nvml = self._nvml
        with self._opened():
            handles = [
                nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
            ]
            uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
            return [self._gpu(index, handles[index]) for index in _visible(uuids)]

    @contextmanager
    def _opened(self) -> Iterator[None]:
        try:
            self._nvml.nvmlInit()
            try:
                yield
            finally:
                self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            raise DriverError(
                f"the NVIDIA driver can't be read: {error}. `nvidia-smi` should say the same; "
                "mend that first."
            ) from None

    def _gpu(self, index: int, handle: Any) -> Gpu:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        computing = {
            **self._processes(nvml.nvmlDeviceGetMPSComputeRunningProcesses, handle),
            **self._processes(nvml.nvmlDeviceGetComputeRunningProcesses, handle),
        }
        drawing = self._processes(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        held = {**drawing, **computing}
        processes = [
            GpuProcess(pid=pid, bytes=held[pid], is_display=pid not in computing)
            for pid in sorted(held)
        ]
        name = str(nvml.nvmlDeviceGetName(handle))
        return Gpu(
            index=index,
            name=name,
            used=int(memory.used),
            total=int(memory.total),
            processes=tuple(processes),
        )

    def _processes(self, function: Any, handle: Any) -> dict[int, int | None]:
        """Bytes by pid; none where this GPU doesn't tell (its memory then counts as unseen)."""
        try:
            return {int(found.pid): found.usedGpuMemory for found in function(handle)}
        except self._nvml.NVMLError:
            return {}


def open_driver() -> Driver | None:
    """The driver of this machine; None where there is none, and so no GPU to use.

    Raises:
        DriverError: there is one, and it can't be asked.
    """
    has_device = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/nvidiactl").exists()
    if not has_device and not _has_library():
        return None
    try:
        import pynvml
    except ModuleNotFoundError:
        raise DriverError(
            "this machine has an NVIDIA driver, and asking it what holds GPU memory needs the "
            "package nvidia-ml-py: pip install nvidia-ml-py (the extra eagle3data[vllm] brings it)."
        ) from None
    driver = Nvml(pynvml)
    if not has_device:
        # Images for GPUs carry the library where there is none; under WSL it is all there is.
        try:
            driver.gpus()
        except DriverError:
            return None
    return driver


def read_gpus(driver: Driver | None, ours: Collection[int] = ()) -> GpuReport:
    """What holds memory now.

    Args:
        driver: as `open_driver` gives it.
        ours: pids that belong to an extraction beside those that carry its mark.

    Raises:
        DriverError: the driver can't be read.
    """
    if driver is None:
        return GpuReport(unread=NO_DRIVER)
    return GpuReport(
        gpus=tuple(
            replace(gpu, processes=tuple(_named(found, ours) for found in gpu.processes))
            for gpu in driver.gpus()
        )
    )


def wait_for_gpu(
    pids_before: Collection[int], timeout: float, driver: Driver | None = None
) -> GpuReport:
    """What holds memory once processes that have ended hold none, or after so many seconds.

    The driver frees a process's memory a moment after its end.

    Args:
        pids_before: processes that have ended.
        timeout: seconds.
        driver: the machine's own by default.

    Returns:
        All that holds memory; `ours` are the processes that were named, and extractions other
        than this process's. Where the driver can't be read it says why: nothing is raised, since
        this comes at the end of work that is done.
    """
    begin = changed = time.monotonic()
    unseen = 0
    while True:
        try:
            report = read_gpus(driver or open_driver(), pids_before)
        except DriverError as error:
            return GpuReport(unread=str(error))
        now, before = time.monotonic(), unseen
        unseen = sum(gpu.unseen for gpu in report.gpus) if pids_before else 0
        changed = now if unseen != before else changed
        is_held = any(found.pid in pids_before for found in report.holders)
        # In a container the driver may name nobody; then what stays as it is is not ours.
        is_settled = not unseen or now - changed >= _SETTLED_SECONDS
        if (is_settled and not is_held) or now - begin >= timeout:
            return report
        time.sleep(_POLL_SECONDS)


def _named(found: GpuProcess, ours: Collection[int]) -> GpuProcess:
    try:
        process = psutil.Process(found.pid)
    except psutil.NoSuchProcess:
        return replace(found, ours=found.pid in ours)
    facts = ProcessFacts.of(process)
    return replace(
        found,
        name=facts.name,
        command=facts.command,
        ours=found.pid in ours or is_ours(process),
    )


def _visible(uuids: list[str]) -> list[int]:
    """Which GPUs CUDA_VISIBLE_DEVICES leaves to this process, by index; all where it can't tell."""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    everything = list(range(len(uuids)))
    if setting is None:
        return everything
    chosen = []
    for word in (word.strip() for word in setting.split(",") if word.strip()):
        if word.isdigit():
            chosen += [index for index in everything if index == int(word)]
        elif word.startswith("GPU-"):
            chosen += [index for index in everything if uuids[index].startswith(word)]
        else:
            return everything
    return sorted(set(chosen))


def _has_library() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True
