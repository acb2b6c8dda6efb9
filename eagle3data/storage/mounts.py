"""What kind of file system a folder lies on, and how much room it has."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

# A mapped file that changes under its reader kills the process, and on a network another machine
# may change it at any time; so maps are for these only, everything else is read with pread.
_LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
)


def is_local_disk(path: str) -> bool:
    """Whether files below `path` lie on a disk (or in the memory) of this machine."""
    return file_system(os.path.realpath(path)) in _LOCAL


@lru_cache(maxsize=256)
def file_system(path: str) -> str:
    """Type of the mount that holds a resolved path (`ext4`, `nfs4`, ...), or `unknown`."""
    best, found = -1, "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        mount = fields.split()[4].encode().decode("unicode_escape")
        below = path == mount or path.startswith(mount.rstrip("/") + "/")
        # Of mounts one over the other the last one counts.
        if below and len(mount) >= best:
            best, found = len(mount), rest.split()[0]
    return found
