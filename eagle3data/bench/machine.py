"""What a figure depends on: processor, caches, memory, kernel, and the disk below a folder."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the device's own sectors are."""
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine a table was made on.

    Attributes:
        cpu: the processor's model name.
        cores: cores this process may use.
        l3_bytes: size of the last-level cache that core 0 sees; 0 where it is not told.
        memory_bytes: of the whole machine.
        kernel: release of the operating system's kernel.
        file_system: type of the file system that holds the scratch folder.
        device: block device below it, or None (memory, network, a layered file system).
    """

    cpu: str
    cores: int
    l3_bytes: int
    memory_bytes: int
    kernel: str
    file_system: str
    device: str | None

    @classmethod
    def here(cls, folder: Path) -> Machine:
        """This machine, and the disk that holds `folder`."""
        file_system, device = mount_of(folder)
        return cls(
            cpu=_cpu_model(),
            cores=core_count(),
            l3_bytes=_l3_bytes(),
            memory_bytes=_memory("MemTotal"),
            kernel=f"{platform.system()} {platform.release()}",
            file_system=file_system,
            device=device,
        )

    def line(self) -> str:
        """All of it in one line."""
        cache = f"{self.l3_bytes / (1 << 20):,.0f} MiB L3" if self.l3_bytes else "L3 not known"
        where = f"{self.file_system} on {self.device}" if self.device else self.file_system
        return (
            f"{self.cpu}, {self.cores} cores, {cache}, {self.memory_bytes / 1e9:.0f} GB memory, "
            f"{where}, {self.kernel}"
        )


def core_count() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def available_memory() -> int:
    """Bytes that can be taken without swapping, page cache included."""
    return _memory("MemAvailable")


def mount_of(folder: Path) -> tuple[str, str | None]:
    """Type of the file system that holds a folder, and the block device below it."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    kind, source = "unknown", ""
    # Fields: id, parent, major:minor, root, mount point, options, ..., "-", type, source, options.
    for line in _lines("/proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            kind, source = rest.split()[:2]
    # A file system with several devices (btrfs) has a number of its own: look at the source.
    names = [fields[2] for fields in _disk_counters() if f"{fields[0]}:{fields[1]}" == number]
    names += [
        fields[2] for fields in _disk_counters() if os.path.realpath(source) == f"/dev/{fields[2]}"
    ]
    return kind, names[0] if names else None


def device_bytes_read(device: str) -> int:
    """Bytes that a block device has delivered since it was attached, by the kernel's counter."""
    for fields in _disk_counters():
        if fields[2] == device:
            return int(fields[5]) * _SECTOR_BYTES
    raise FileNotFoundError(f"/proc/diskstats has no device {device}")


def _disk_counters() -> list[list[str]]:
    return [line.split() for line in _lines("/proc/diskstats")]


def _cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _l3_bytes() -> int:
    for cache in sorted(_CACHES.glob("index*")):
        if (cache / "level").read_text().strip() == "3":
            text = (cache / "size").read_text().strip()
            return int(text.rstrip("KMG")) * _UNITS.get(text[-1], 1)
    return 0


def _memory(field: str) -> int:
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    return 0


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
