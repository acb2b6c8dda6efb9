"""One EAGLE-3 sample in memory: tokens, mask and the states that belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import SampleError

States = npt.NDArray[np.float16] | npt.NDArray[np.uint16]


@dataclass(kw_only=True)
class Sample:
    """A token sequence and, for every token, the residual stream at the captured layers.

    Arrays may be given as numpy or torch (on the CPU); they are kept as numpy. A torch
    bfloat16 tensor becomes its uint16 bits, which is how bfloat16 sets are stored.

    Attributes:
        hidden_states: canonical layer id to `[T, H]`, float16 (or uint16 bits of bfloat16).
        input_ids: `[T]` int32.
        loss_mask: `[T]` uint8, 1 where the token is the assistant's (unshifted).
        sample_id: unique in its data set.
        source: where the sample came from, `file:line`.
        split: name of the part it belongs to (`train`, `eval`), or None.
        source_extra: what else the source said.
        witness_token: the token the engine itself chose greedily after the last one.
        witness_logprob: the engine's own log-probability (nats) of that token.
    """

    hidden_states: dict[int, Any]
    input_ids: Any
    loss_mask: Any
    sample_id: str
    source: str = ""
    split: str | None = None
    source_extra: Mapping[str, str] = field(default_factory=dict)
    witness_token: int | None = None
    witness_logprob: float | None = None

    def __post_init__(self) -> None:
        self.hidden_states = {
            layer: as_numpy(states) for layer, states in sorted(self.hidden_states.items())
        }
        self.input_ids = np.ascontiguousarray(as_numpy(self.input_ids), dtype=np.int32)
        self.loss_mask = np.ascontiguousarray(as_numpy(self.loss_mask), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.input_ids)

    def check(self, layers: list[int], hidden_size: int, vocab_size: int) -> None:
        """Refuse a sample whose arrays disagree with each other or with the data set.

        Raises:
            SampleError: `length_mismatch`, `layers_mismatch`, `mask_invalid` or `tokens_invalid`.
        """
        tokens = len(self)
        if tokens == 0:
            raise SampleError("length_mismatch", self.sample_id, "it has no tokens.")
        if len(self.loss_mask) != tokens:
            raise SampleError(
                "length_mismatch",
                self.sample_id,
                f"{tokens} token ids but {len(self.loss_mask)} mask values.",
            )
        if self.loss_mask.max() > 1:
            raise SampleError(
                "mask_invalid", self.sample_id, "the loss mask holds more than 0 and 1."
            )
        low, high = int(self.input_ids.min()), int(self.input_ids.max())
        if low < 0 or high >= vocab_size:
            raise SampleError(
                "tokens_invalid",
                self.sample_id,
                f"token ids from {low} to {high}; the vocabulary is 0..{vocab_size - 1}.",
            )
        if list(self.hidden_states) != layers:
            raise SampleError(
                "layers_mismatch",
                self.sample_id,
                f"states of layers {list(self.hidden_states)}; the data set keeps {layers}.",
            )
        for layer, states in self.hidden_states.items():
            if states.shape != (tokens, hidden_size):
                raise SampleError(
                    "length_mismatch",
                    self.sample_id,
                    f"states of layer {layer} are {list(states.shape)}, expected "
                    f"[{tokens}, {hidden_size}]: one row a token. A prefix cache that was left on "
                    "returns fewer rows than tokens.",
                )


def as_numpy(array: Any) -> npt.NDArray[Any]:
    """A numpy view of a numpy array, a CPU torch tensor or a list; bfloat16 as uint16 bits."""
    if hasattr(array, "detach"):
        tensor = array.detach()
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.contiguous().view(_torch_uint16(tensor))
        numpy_array: npt.NDArray[Any] = tensor.numpy()
        return numpy_array
    return np.asarray(array)


def as_float32(states: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Stored states as float32: float16 values, or bfloat16 given by its uint16 bits."""
    if states.dtype == np.uint16:
        return (states.astype(np.uint32) << 16).view(np.float32)
    return states.astype(np.float32)


def _torch_uint16(tensor: Any) -> Any:
    import sys

    return sys.modules[type(tensor).__module__].uint16
