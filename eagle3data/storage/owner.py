"""Who a process is, told so that another process can be sure that it is gone."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Owner:
    """One process on one machine.

    Attributes:
        host: name of the machine.
        boot: id of its current run; a reboot changes it.
        namespace: inode of the process namespace: a container counts its own processes.
        pid: process id there.
        started: clock ticks from boot to the process's start; a reused pid has another.
    """

    host: str
    boot: str
    namespace: int
    pid: int
    started: int

    @classmethod
    def current(cls) -> Self:
        """This process."""
        return cls(
            platform.node(),
            _boot(),
            os.stat("/proc/self/ns/pid").st_ino,
            os.getpid(),
            _started(os.getpid()) or 0,
        )

    @classmethod
    def from_dict(cls, value: Any) -> Self | None:
        """What `as_dict` made, or None for anything else."""
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or set(value) != set(names):
            return None
        return cls(*(value[name] for name in names))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def token(self) -> str:
        """A short name for files of this process."""
        return f"{self.host}.{self.boot}.{self.namespace}.{self.pid}.{self.started}"

    @classmethod
    def from_token(cls, token: str) -> Self | None:
        """The owner whose token it is, or None."""
        host, *rest = token.rsplit(".", 4)
        if len(rest) != 4 or not all(part.isdigit() for part in rest[1:]):
            return None
        return cls(host, rest[0], *map(int, rest[1:]))

    @property
    def is_here(self) -> bool:
        """Whether it would be seen from here if it ran: the same machine, boot and namespace."""
        here = Owner.current()
        return (self.host, self.boot, self.namespace) == (here.host, here.boot, here.namespace)

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended; false wherever that can't be known."""
        return self.is_here and _started(self.pid) != self.started


@lru_cache(maxsize=1)
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


def _started(pid: int) -> int | None:
    """Start time of a process that runs, None of one that doesn't (a zombie has ended)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, in parentheses, may hold spaces and parentheses itself.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])
