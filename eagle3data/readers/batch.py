"""`Batch`: packed samples as torch tensors of fixed shape."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Samples laid end to end in `T = token_budget` rows; rows after the last one are zero.

    Attributes:
        hidden_states: `[L, T, H]`, float16 or bfloat16 as stored.
        layers: canonical id of each entry of the first dimension.
        input_ids: `[T]` int32.
        loss_mask: `[T]` uint8, unshifted.
        position_ids: `[T]` int32, a token's place in its sample: from 0 in every document, but for
            later pieces of a sample that was split, which go on where the piece before ended.
        document_ids: `[T]` int32, the document's place in the batch; -1 where there is none.
        cu_seqlens: `[D + 1]` int32, where each document starts, and the end of the last.
        sample_ids: one a document; none in a batch that only keeps ranks in step.
        tokens: of the samples in it; known without asking the device.
    """

    hidden_states: torch.Tensor
    layers: list[int]
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    position_ids: torch.Tensor
    document_ids: torch.Tensor
    cu_seqlens: torch.Tensor
    sample_ids: list[str]
    tokens: int = field(default=-1)

    def __post_init__(self) -> None:
        if self.tokens < 0:
            object.__setattr__(self, "tokens", int(self.cu_seqlens[-1]))

    @property
    def is_padding(self) -> bool:
        """Whether no sample is in it (only in an epoch's last step, for ranks without one)."""
        return not self.sample_ids

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch with its tensors on a device.

        With `non_blocking` the current stream's work after it finds them there; the batch it came
        from may be dropped at once, on the same stream.
        """

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return replace(
            self,
            hidden_states=moved(self.hidden_states),
            input_ids=moved(self.input_ids),
            loss_mask=moved(self.loss_mask),
            position_ids=moved(self.position_ids),
            document_ids=moved(self.document_ids),
            cu_seqlens=moved(self.cu_seqlens),
        )
