"""A sample's chunks as they lie in a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagle3data.storage.codecs import CHECKSUM_BYTES


@dataclass(frozen=True)
class Stored:
    """A sample's uncompressed chunks of one array, where a file is mapped.

    Attributes:
        chunks: `[chunks, bytes]` uint8, each one's payload and its CRC32C.
        used_bytes: of the last payload; what follows is the fill value.
        fill: the fill value's bytes.
    """

    chunks: npt.NDArray[np.uint8]
    used_bytes: int
    fill: bytes

    @property
    def payload_bytes(self) -> int:
        """Of a chunk."""
        return int(self.chunks.shape[1]) - CHECKSUM_BYTES
