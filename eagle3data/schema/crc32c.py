"""Checksums of parts from checksums of wholes: CRC32C as the polynomial arithmetic that it is.

A CRC32C is a polynomial modulo P over two elements, kept with its highest bit lowest, and a byte
more multiplies it by x^8. So what a known ending added can be taken away again.
"""

from __future__ import annotations

from functools import cache

_P = 0x82F63B78
"""x^32 modulo P, highest bit lowest."""
_ONE = 1 << 31
_INVERSE_OF_X = (_ONE ^ _P) << 1 | 1


def crc32c_of_beginning(whole: int, ending: int, ending_bytes: int) -> int:
    """CRC32C of what comes before an ending.

    Args:
        whole: CRC32C of beginning and ending.
        ending: CRC32C of the ending alone.
        ending_bytes: its length.
    """
    return _times(whole ^ ending, _bytes_back(ending_bytes))


@cache
def _bytes_back(count: int) -> int:
    """x to the power of -8 times a count."""
    found, square, exponent = _ONE, _INVERSE_OF_X, 8 * count
    while exponent:
        if exponent & 1:
            found = _times(found, square)
        square = _times(square, square)
        exponent >>= 1
    return found


def _times(first: int, second: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if first >> bit & 1:
            product ^= second
        second = second >> 1 ^ (_P if second & 1 else 0)
    return product
