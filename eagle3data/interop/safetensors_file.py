"""Safetensors files by their header: shapes for nothing, then only the bytes that are asked for.

The safetensors library maps files and gives numpy no bfloat16 and no float8; the format is 8 bytes
of header length, a JSON header and the tensors, so it is read here.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.interop.source_files import open_file, read_range

_DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F8_E4M3": np.dtype("u1"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
}
_LONGEST_HEADER = 100_000_000
"""As the format allows."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies in a file.

    Attributes:
        dtype: as the format names it: `BF16`.
        shape: of the tensor.
        offset: of its first byte in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int


class SafetensorsFile:
    """The tensors of one file, which was found to be whole."""

    def __init__(self, path: Path, place: str) -> None:
        """Read the header.

        Raises:
            SampleError: no such file, no header, or fewer bytes than it says.
        """
        self._file, self._place = open_file(path, place), place
        self._size = self._file.size
        length = int(read_range(self._file, 0, 8, place).view("<u8")[0])
        if length > min(self._size - 8, _LONGEST_HEADER):
            raise self._damaged(f"a header of {length} bytes in a file of {self._size}")
        header = self._json(read_range(self._file, 8, length, place).tobytes())
        header.pop("__metadata__", None)
        self.tensors = {name: self._tensor(name, of, 8 + length) for name, of in header.items()}

    def read(self, name: str) -> npt.NDArray[Any]:
        """A tensor's values; bfloat16 as uint16 and float8 as uint8, by their bits.

        Raises:
            SampleError: it can't be read.
        """
        tensor = self.tensors[name]
        dtype = _DTYPES[tensor.dtype]
        count = math.prod(tensor.shape) * dtype.itemsize
        return (
            read_range(self._file, tensor.offset, count, self._place)
            .view(dtype)
            .reshape(tensor.shape)
        )

    def _json(self, text: bytes) -> dict[str, Any]:
        try:
            header = json.loads(text)
        except ValueError:
            raise self._damaged("a header that is no JSON") from None
        if not isinstance(header, dict):
            raise self._damaged("a header that is no JSON object")
        return header

    def _tensor(self, name: str, of: Any, start: int) -> StoredTensor:
        try:
            dtype, shape = str(of["dtype"]), tuple(int(n) for n in of["shape"])
            first, last = (int(n) for n in of["data_offsets"])
        except (TypeError, KeyError, ValueError):
            raise self._damaged(f"a header entry {name!r} without dtype, shape, offsets") from None
        if start + last > self._size:
            raise self._damaged(f"{self._size} bytes, but {name!r} ends at {start + last}")
        if dtype not in _DTYPES:
            raise refusals.refusal(
                refusals.LAYOUT,
                self._place,
                f"tensor {name!r} is of {dtype}",
                f"one of {', '.join(_DTYPES)}",
                "Cast it in the source.",
            )
        if min(shape, default=0) < 0 or math.prod(shape) * _DTYPES[dtype].itemsize != last - first:
            raise self._damaged(f"{last - first} bytes for {name!r}, {dtype} {list(shape)}")
        return StoredTensor(dtype=dtype, shape=shape, offset=start + first)

    def _damaged(self, found: str) -> Exception:
        return refusals.damaged(self._place, found, "a whole safetensors file")
