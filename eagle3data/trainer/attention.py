"""Attention over training-time-test steps: causal to step 0, own position only to later steps.

At step s the query of base position t sees the keys of step 0 at j <= t in its document and,
of each step 1..s, only the key of t itself. So a later step adds one score a query (a
diagonal), not a matrix, and the mask over step 0's keys is the same at every step.

`PlainAttention` is the definition in dense arithmetic: the CPU's way, and what the tests hold
`FlexAttention` against. That one runs step 0's part in a fused kernel which also returns each
row's log-sum-exp, and joins the diagonals to it: softmax over the union is the average of the
parts by their sums of exponentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from eagle3data.trainer.compiling import compiled

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128
"""Rows of a block of the fused kernel's mask."""

SMALLEST_HEAD = 16
"""Head size below which the fused kernel has no tiles."""


class Attention(Protocol):
    """Attention within one pack."""

    def __call__(self, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Attend the queries of the newest step.

        Args:
            query: `[T, A, D]`, rotated.
            keys: of every step up to the queries' own, step 0 first; each `[T, KV, D]`, rotated.
            values: likewise.

        Returns:
            `[T, A, D]`, finite also where a row is padding.
        """
        ...


class PlainAttention:
    """Each document's scores as a matrix; memory grows with the square of its length."""

    def __init__(self, cu_seqlens: Sequence[int]) -> None:
        """Attend within documents.

        Args:
            cu_seqlens: where documents start, and where the last one ends; rows from there on
                are padding and give zeros.
        """
        self._cu_seqlens = cu_seqlens

    def __call__(self, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        pieces = []
        for start, end in pairwise(self._cu_seqlens):
            if start == end:
                continue
            own_keys = [step[start:end].transpose(0, 1) for step in keys]  # [KV, n, D]
            own_values = [step[start:end].transpose(0, 1) for step in values]  # [KV, n, D]
            document = query[start:end].transpose(0, 1)  # [A, n, D]
            attend = _first_step if len(keys) == 1 else _later_step
            pieces.append(attend(document, own_keys, own_values).transpose(0, 1))
        padding = len(query) - self._cu_seqlens[-1]
        if padding or not pieces:
            pieces.append(query.new_zeros((padding, *query.shape[1:])))
        return torch.cat(pieces)


class FlexAttention:
    """A fused kernel over step 0's keys, in blocks that the documents' mask leaves over."""

    def __init__(self, document_ids: Tensor, *, compile: bool) -> None:  # noqa: A002
        """Make the mask of a pack, once for all its steps.

        Args:
            document_ids: `[T]`, one number a document in ascending order of rows; padding
                attends to padding, so that its rows stay finite.
            compile: compile the joining too. The kernel itself exists compiled only; without
                CUDA torch puts dense arithmetic in its place.
        """

        self._mask = document_mask(document_ids)
        self._attend = compiled(flex_attention, document_ids.is_cuda)
        self._join = compiled(join_diagonals, compile)

    def __call__(self, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        found: Any = self._attend(
            query.transpose(0, 1)[None],
            keys[0].transpose(0, 1)[None],
            values[0].transpose(0, 1)[None],
            block_mask=self._mask,
            enable_gqa=query.shape[1] != keys[0].shape[1],
            return_aux=AuxRequest(lse=True),
        )
        attended, aux = found
        rows: Tensor = attended[0].transpose(0, 1)  # [T, A, D]
        if len(keys) == 1:
            return rows
        joined: Tensor = self._join(query, rows, aux.lse[0].T, list(keys[1:]), list(values[1:]))
        return joined


def document_mask(document_ids: Tensor) -> BlockMask:
    """The causal mask within documents, block by block.

    torch's own way looks at every pair of rows to find the blocks; with documents in ascending
    order the first and the last row of each block say as much.

    Args:
        document_ids: `[T]`, ascending, then -1 for padding.
    """
    length, device = len(document_ids), document_ids.device
    ordered = torch.where(document_ids >= 0, document_ids, document_ids.max() + 1)

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (ordered[key] == ordered[query])

    starts = torch.arange(0, length, BLOCK, device=device)
    first, last = ordered[starts], ordered[(starts + BLOCK - 1).clamp(max=length - 1)]
    earlier = starts[None] < starts[:, None]  # [query block, key block]
    touching = (starts[None] <= starts[:, None]) & (last[None] >= first[:, None])
    complete = (starts + BLOCK <= length)[:, None]
    # One document from the one block to the other.
    whole = earlier & complete & (first[None] == last[:, None])
    return BlockMask.from_kv_blocks(
        *_block_list(touching & ~whole),
        *_block_list(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(length, length),
    )


def _block_list(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block has, and which: the chosen ones come first."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1).int()[None, None], order.int()[None, None]


def join_diagonals(
    query: Tensor, attended: Tensor, log_sums: Tensor, keys: list[Tensor], values: list[Tensor]
) -> Tensor:
    """Add one key a row and step to an attention that was done without them.

    Args:
        query: `[T, A, D]`, rotated.
        attended: `[T, A, D]`, the result without the added keys.
        log_sums: `[T, A]` float32, log-sum-exp of the scores behind it.
        keys: `[T, KV, D]` each; row t is seen by query t only.
        values: `[T, KV, D]` each.

    Returns:
        `[T, A, D]`.
    """
    rows, heads, size = query.shape
    by_key_head = (rows, keys[0].shape[1], -1)
    grouped = query.view(*by_key_head, size).float() * size**-0.5  # [T, KV, A/KV, D]
    own = [(grouped * key.float()[:, :, None]).sum(-1) for key in keys]  # [T, KV, A/KV] each
    weights = torch.stack([log_sums.reshape(by_key_head), *own], dim=-1).softmax(-1)
    joined = weights[..., :1] * attended.reshape(*by_key_head, size).float()
    for step, value in enumerate(values, start=1):
        joined = joined + weights[..., step, None] * value.float()[:, :, None]
    return joined.view(rows, heads, size).to(query.dtype)


def _first_step(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Plain causal attention; `[A, n, D]`."""
    return F.scaled_dot_product_attention(
        query[None], keys[0][None], values[0][None], is_causal=True, enable_gqa=True
    )[0]


def _later_step(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """One softmax over step 0's causal scores and the later steps' own scores; `[A, n, D]`."""
    heads, length, size = query.shape
    grouped = query.view(len(keys[0]), -1, length, size) * size**-0.5  # [KV, A/KV, n, D]
    scores = (grouped @ keys[0][:, None].transpose(-1, -2)).float()  # [KV, A/KV, n, n]
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    own = [(grouped.float() * key[:, None].float()).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.cat([scores.masked_fill(future, -torch.inf), *own], dim=-1).softmax(-1)
    attended = weights[..., :length].to(query.dtype) @ values[0][:, None]
    for step, value in enumerate(values[1:]):
        attended = attended + weights[..., length + step, None].to(query.dtype) * value[:, None]
    return attended.reshape(heads, length, size)
