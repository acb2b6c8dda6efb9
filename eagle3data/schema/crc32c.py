"""Checksums of rows from those of their chunks: CRC32C as the polynomial arithmetic that it is.

A CRC32C is a polynomial modulo P over two elements, kept with its highest bit lowest, and a byte
more multiplies it by x^8. So what a known ending added can be taken away again, and the CRC32C of
pieces one after the other is the sum of theirs, each times what the bytes behind it multiply by.
All of that is linear in the bits of the checksums: for chunks whose places are known, one table
of what each bit comes to, and a sum over those that are set.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from eagle3data.schema.digest import combine_crc32c, crc32c

_P = 0x82F63B78
"""x^32 modulo P, highest bit lowest."""
_ONE = 1 << 31
_ORDER = (1 << 31) - 1
"""x to this power is 1, so powers below 0 are powers above it."""
_ROWS_AT_ONCE = 4096
"""Tables are made for multiples of it, so that batches of about one size share one."""


class RowChecksums:
    """The CRC32C of rows that lie in chunks, from the CRC32C of each whole chunk."""

    def __init__(
        self,
        fill: bytes,
        filled: npt.NDArray[np.int64],
        behind: npt.NDArray[np.int64],
        chunk_rows: int,
    ) -> None:
        """Say how they lie; the checksums of many arrays may then be asked for.

        Args:
            fill: a row of fill values.
            filled: `[chunks]`, how many of those each chunk ends in.
            behind: `[chunks]`, rows, those not counted, that come after each chunk's.
            chunk_rows: the most that a chunk holds.
        """
        powers = behind - filled
        count = int(powers.max()) + chunk_rows + 1
        count += -count % _ROWS_AT_ONCE
        table = _powers(len(fill), chunk_rows, count)
        self._of_bits = table[powers + chunk_rows].reshape(-1)
        self._fill = _of_fill(fill, chunk_rows)[filled]

    def joined(self, checksums: npt.NDArray[np.uint32]) -> list[int]:
        """CRC32C of all rows that count, one chunk's after the other's, of each array.

        Args:
            checksums: `[arrays, chunks]`, each chunk's own, its fill values included.
        """
        bits = np.unpackbits((checksums ^ self._fill).astype(">u4").view(np.uint8), axis=1)
        found: list[int] = np.bitwise_xor.reduce(self._of_bits * bits, axis=1).tolist()
        return found


@lru_cache(maxsize=16)
def _powers(row_bytes: int, least: int, count: int) -> npt.NDArray[np.uint32]:
    """`[count, 32]`: at `(row, bit)`, x to the power of 8 times the bytes of `row - least` rows,
    and of `bit` more."""
    found = np.array([_power(-least * row_bytes)], np.uint32)
    while len(found) < count:
        found = np.append(found, _times(found, _power(len(found) * row_bytes)))
    table = np.empty((count, 32), np.uint32)
    table[:, 0] = found[:count]
    for bit in range(31):
        table[:, bit + 1] = _times_x(table[:, bit])
    return table


@lru_cache(maxsize=16)
def _of_fill(fill: bytes, most: int) -> npt.NDArray[np.uint32]:
    """`[most + 1]`: CRC32C of a row so many times; of none it is 0."""
    found = [0]
    for _ in range(most):
        found.append(crc32c(fill, found[-1]))
    return np.array(found, np.uint32)


def _power(count: int) -> int:
    """x to the power of 8 times a count, which may be below 0."""
    return combine_crc32c(_ONE, 0, count % _ORDER)


def _times(values: npt.NDArray[np.uint32], factor: int) -> npt.NDArray[np.uint32]:
    product, shifted = np.zeros_like(values), np.array(factor, np.uint32)
    for bit in range(31, -1, -1):
        product ^= (values >> np.uint32(bit) & np.uint32(1)) * shifted
        shifted = _times_x(shifted)
    return product


def _times_x(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return np.asarray(values >> np.uint32(1) ^ (values & np.uint32(1)) * np.uint32(_P))
