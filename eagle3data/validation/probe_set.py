"""Which samples are probed, and their states as torch tensors, read one at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.index import list_values
from eagle3data.storage import layout
from eagle3data.storage.arrays import chunk_codec
from eagle3data.validation.findings import Finding, reading_advice

if TYPE_CHECKING:
    from torch import Tensor

MAX_TOKENS = 49_152
MAX_SAMPLES = 512


class ProbeSet:
    """The samples that the probes look at.

    Attributes:
        positions: index rows of the probed samples.
        unreadable: findings for those that could not be read.
        bytes_read: of states, so far.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.unreadable: list[Finding] = []
        self.bytes_read = 0
        self._lock = threading.Lock()
        self._offsets = dataset.index["token_offset"].to_numpy()
        self._lengths = dataset.index["length"].to_numpy()
        self.positions = self._readable(choose(self._lengths.tolist()))

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def tokens(self) -> int:
        return int(self._lengths[self.positions].sum())

    def sample_id(self, position: int) -> str:
        return str(self.dataset.index["sample_id"][position].as_py())

    def shard(self, position: int) -> int:
        return self.dataset.manifest.storage.axis.shard_of(int(self._offsets[position]))

    def ids(self, position: int) -> list[int]:
        found: list[int] = list_values(self.dataset.index["input_ids"], position).tolist()
        return found

    def mask(self, position: int) -> npt.NDArray[np.bool_]:
        """`[T]` true where a token carries loss."""
        listed = list_values(self.dataset.index["loss_mask"], position)
        return np.asarray(listed).astype(bool)

    def states(self, position: int, layer: int) -> Tensor:
        """`[T, H]` in the storage dtype."""
        values = self.dataset.read_array(layout.states_array(layer), position)
        self._count(values.nbytes)
        return as_tensor(values)

    def last_row(self, position: int, layer: int) -> Tensor:
        """`[H]`, reading the sample's last chunk only. Any thread may call it.

        Raises:
            CorruptionError: that chunk can't be read.
        """
        axis = self.dataset.manifest.storage.axis
        offset, length = int(self._offsets[position]), int(self._lengths[position])
        array = layout.states_array(layer)
        last = axis.chunks_of(offset, length).stop - 1
        codec = chunk_codec(self.dataset.manifest, array)
        rows = length - (axis.aligned(length) - axis.chunk_tokens)
        out = np.empty((rows, *codec.shape[1:]), dtype=codec.dtype)
        reader = self.dataset.shard_reader(array, axis.shard_of(offset))
        reader.read(range(last, last + 1), out, self.sample_id(position))
        self._count(out.nbytes)
        return as_tensor(out[-1:])[0]

    def _count(self, read: int) -> None:
        with self._lock:
            self.bytes_read += read

    def _readable(self, positions: Sequence[int]) -> list[int]:
        readable = []
        for position in positions:
            try:
                for layer in self.dataset.manifest.layers:
                    self.dataset.read_array(layout.states_array(layer), position)
                readable.append(position)
            except CorruptionError as error:
                self.unreadable.append(
                    Finding(
                        kind=error.kind,
                        detail=str(error),
                        sample_id=self.sample_id(position),
                        shard=self.shard(position),
                        layer=int(str(error.array).rsplit("/", 1)[-1]) if error.array else None,
                        advice=reading_advice(error.kind),
                        chance=0.0,
                    )
                )
        return readable


def choose(lengths: Sequence[int]) -> list[int]:
    """Samples to probe: all of a small set, else evenly spread over the token axis.

    At most `MAX_SAMPLES`, and as many as `MAX_TOKENS` hold (at least one).
    """
    total = sum(lengths)
    fit = len(lengths) if total <= MAX_TOKENS else max(1, MAX_TOKENS * len(lengths) // total)
    wanted = min(len(lengths), MAX_SAMPLES, fit)
    # The middles of `wanted` equal stretches: the same every time, in every shard alike.
    return [int((2 * at + 1) * len(lengths) // (2 * wanted)) for at in range(wanted)]


def as_tensor(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
    """A tensor of stored states; uint16 holds bfloat16's bits."""
    import torch

    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if values.dtype == np.uint16 else tensor
