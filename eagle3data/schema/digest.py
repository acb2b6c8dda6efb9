"""Digests and checksums: what makes two things the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from awscrt import checksums


def crc32c(data: Any, value: int = 0) -> int:
    """CRC32C (Castagnoli, RFC 3720) of anything contiguous; `value` continues one."""
    return int(checksums.crc32c(data, value))


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """CRC32C of two pieces one after the other, from the CRC32C of each."""
    return int(checksums.combine_crc32c(first, second, second_bytes))


def tokens_crc32c(input_ids: npt.NDArray[np.int32]) -> int:
    """CRC32C of a sample's token ids as little-endian int32, as the index keeps it."""
    return crc32c(np.ascontiguousarray(input_ids, dtype="<i4"))


def json_digest(value: Any) -> str:
    """`sha256:...` of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return bytes_digest(text.encode())


def bytes_digest(data: bytes) -> str:
    """`sha256:...` of bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sequence_digest(parts: Iterable[str]) -> str:
    """`sha256:...` over strings IN ORDER: a reshuffle changes it, unlike a count or a histogram."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\n")
    return "sha256:" + digest.hexdigest()


def sample_digest(input_ids: npt.NDArray[np.int32], loss_mask: npt.NDArray[np.uint8]) -> str:
    """16 hex digits that name a sample by its content: its token ids and its mask."""
    digest = hashlib.sha256(np.ascontiguousarray(input_ids, dtype="<i4").tobytes())
    digest.update(np.ascontiguousarray(loss_mask, dtype="u1").tobytes())
    return digest.hexdigest()[:16]
