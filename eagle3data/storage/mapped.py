"""A committed object on a local disk, read through a map or with pread."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eagle3data.storage.mounts import is_local_disk

_MADV_POPULATE_READ = 22
_BLOCK = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

Bytes = npt.NDArray[np.uint8]


class LocalObject:
    """Bytes of one file, never copied where the file can be mapped.

    A map is faster than pread by the copy into the kernel's buffer, but reading a page that is
    not there any more kills the process. So the size is compared before every read, and pages
    are brought in by a call that fails with an error instead the first time they are touched.

    Attributes:
        path: of the file.
        size: bytes when it was opened.
    """

    def __init__(self, path: str) -> None:
        """Open a file.

        Raises:
            FileNotFoundError: there is none.
        """
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self._close = weakref.finalize(self, self._file.close)
        self.size = os.fstat(self._file.fileno()).st_size
        self._map: mmap.mmap | None = None
        if self.size and is_local_disk(path):
            self._map = mmap.mmap(self._file.fileno(), self.size, prot=mmap.PROT_READ)
            self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
            self._touched = bytearray(-(-self.size // _BLOCK))
            # The map has a descriptor of its own; two a file would be too many.
            self._close()

    def will_read(self, start: int, stop: int) -> None:
        """Have the disk begin with bytes that are read soon; nothing waits for it."""
        if self._map is None:
            os.posix_fadvise(self._file.fileno(), start, stop - start, os.POSIX_FADV_WILLNEED)
        elif not self._is_touched(start, stop):
            first = start - start % mmap.PAGESIZE
            self._advise(first, stop, mmap.MADV_WILLNEED)

    def read(self, start: int, stop: int) -> Bytes:
        """Bytes `[start, stop)`; fewer where the file has become shorter.

        Raises:
            OSError: the disk can't deliver them.
        """
        return self.read_all([(start, stop)])[0]

    def read_all(self, bounds: Sequence[tuple[int, int]]) -> list[Bytes]:
        """As `read` for each; the size, for which Python's lock changes hands, is asked for once.

        Raises:
            OSError: the disk can't deliver them.
        """
        if self._map is None:
            return [_pread(self._file.fileno(), start, stop - start) for start, stop in bounds]
        size = self._map.size()
        for start, stop in bounds:
            if start < min(stop, size):
                self._bring_in(start, min(stop, size))
        return [self._bytes[start : min(stop, size)] for start, stop in bounds]

    def _bring_in(self, start: int, stop: int) -> None:
        """Map the pages in one go, the first time only: faults one by one cost more."""
        if self._is_touched(start, stop):
            return
        first = start - start % mmap.PAGESIZE
        code = self._advise(first, stop, _MADV_POPULATE_READ)
        # A kernel before 5.14 doesn't know the call; pages then come in one by one.
        if code not in (0, errno.EINVAL):
            raise OSError(code, os.strerror(code))
        begin, end = start // _BLOCK, -(-stop // _BLOCK)
        self._touched[begin:end] = b"\1" * (end - begin)

    def _is_touched(self, start: int, stop: int) -> bool:
        return self._touched.find(0, start // _BLOCK, -(-stop // _BLOCK)) < 0

    def _advise(self, first: int, stop: int, advice: int) -> int:
        # ctypes lets other threads run while the disk is read; mmap.madvise does not.
        failed = _libc.madvise(self._bytes.ctypes.data + first, stop - first, advice)
        return ctypes.get_errno() if failed else 0


def _pread(descriptor: int, start: int, length: int) -> Bytes:
    """`pread` until `length` bytes or the end: one call returns at most 2 GiB."""
    data = np.empty(length, np.uint8)
    done = 0
    while done < length:
        got = os.preadv(descriptor, [data[done:].data], start + done)
        if not got:
            break
        done += got
    return data[:done]
