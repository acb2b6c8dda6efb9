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
            query: `[R, A, D]`, rotated, of the pack's rows that are unrolled.
            keys: of every step up to the queries' own, step 0 first; `[T, KV, D]`, rotated, for
                that one. A later step's are of the R rows; at step 0 there is no later one.
            values: likewise.

        Returns:
            `[R, A, D]`, finite also where a row is padding.
        """
        ...


class PlainAttention:
    """Each document's scores as a matrix; memory grows with the square of its length."""

    def __init__(self, cu_seqlens: Sequence[int], rows: Tensor) -> None:
        """Attend within documents.

        Args:
            cu_seqlens: where documents start, and where the last one ends; rows from there on
                are padding and give zeros.
            rows: `[R]` int64 ascending, the queries' places in the pack.
        """
        self._rows = rows
        # Of each document: where it lies in the pack, and where its queries lie among the rows.
        bounds = torch.searchsorted(rows.cpu(), torch.tensor(cu_seqlens)).tolist()
        self._documents = list(zip(pairwise(cu_seqlens), pairwise(bounds), strict=True))

    def __call__(self, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        pieces = []
        for (start, end), (first, last) in self._documents:
            if first == last:
                continue
            future = torch.arange(start, end, device=query.device) > self._rows[first:last, None]
            pieces.append(
                _attend_document(
                    query[first:last].transpose(0, 1),
                    [keys[0][start:end].transpose(0, 1), *_rows_of(keys[1:], first, last)],
                    [values[0][start:end].transpose(0, 1), *_rows_of(values[1:], first, last)],
                    future,
                ).transpose(0, 1)
            )
        pieces.append(query.new_zeros((len(query) - sum(map(len, pieces)), *query.shape[1:])))
        return torch.cat(pieces)


def _rows_of(steps: Sequence[Tensor], first: int, last: int) -> list[Tensor]:
    return [step[first:last].transpose(0, 1) for step in steps]


class FlexAttention:
    """A fused kernel over step 0's keys, in blocks that the documents' mask leaves over."""

    def __init__(
        self,
        document_ids: Tensor,
        rows: Tensor,
        *,
        compile: bool,  # noqa: A002
    ) -> None:
        """Make the mask of a pack, once for all its steps.

        Args:
            document_ids: `[T]`, one number a document in ascending order of rows; padding
                attends to padding, so that its rows stay finite.
            rows: `[R]` int64 ascending, the queries' places in the pack.
            compile: compile the joining too. The kernel itself exists compiled only; without
                CUDA torch puts dense arithmetic in its place.
        """

        self._mask = document_mask(document_ids, rows)
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
        first: Tensor = attended[0].transpose(0, 1)  # [R, A, D]
        if len(keys) == 1:
            return first
        joined: Tensor = self._join(query, first, aux.lse[0].T, list(keys[1:]), list(values[1:]))
        return joined


def document_mask(document_ids: Tensor, rows: Tensor) -> BlockMask:
    """The causal mask within documents, block by block.

    torch's own way looks at every pair of a query and a key to find the blocks; with documents
    in ascending order the first and the last row of each block say as much.

    Args:
        document_ids: `[T]`, ascending, then -1 for padding.
        rows: `[R]` int64 ascending, the queries' places in the pack.
    """
    length = len(document_ids)
    documents = torch.where(document_ids >= 0, document_ids, document_ids.max() + 1)

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= rows[query]) & (documents[key] == documents[rows[query]])

    key_first, key_last = _block_ends(length, document_ids.device)
    first_query, last_query = _block_ends(len(rows), document_ids.device)
    first_row, last_row = rows[first_query][:, None], rows[last_query][:, None]
    # [query block, key block]: does any query see any key, and does each see all?
    touching = (key_first <= last_row) & (documents[key_last] >= documents[first_row])
    whole = (key_last <= first_row) & (documents[key_first] == documents[last_row])
    complete = (last_query - first_query + 1 == BLOCK)[:, None] & (
        key_last - key_first + 1 == BLOCK
    )
    return BlockMask.from_kv_blocks(
        *_block_list(touching & ~(whole & complete)),
        *_block_list(whole & complete),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(len(rows), length),
    )


def _block_ends(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first and the last row of each block, `[blocks]` each."""
    first = torch.arange(0, length, BLOCK, device=device)
    return first, (first + BLOCK - 1).clamp(max=length - 1)


def _block_list(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block has, and which: the chosen ones come first."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1).int()[None, None], order.int()[None, None]


def join_diagonals(
    query: Tensor, attended: Tensor, log_sums: Tensor, keys: list[Tensor], values: list[Tensor]
) -> Tensor:
    """Add one key a row and step to an attention that was done without them.

    Args:
        query: `[R, A, D]`, rotated.
        attended: `[R, A, D]`, the result without the added keys.
        log_sums: `[R, A]` float32, log-sum-exp of the scores behind it.
        keys: `[R, KV, D]` each; a row is seen by the query of the same row only.
        values: `[R, KV, D]` each.

    Returns:
        `[R, A, D]`.
    """
    rows, heads, size = query.shape
    by_key_head = (rows, keys[0].shape[1], -1)
    grouped = query.view(*by_key_head, size).float() * size**-0.5  # [R, KV, A/KV, D]
    own = [(grouped * key.float()[:, :, None]).sum(-1) for key in keys]  # [R, KV, A/KV] each
    weights = torch.stack([log_sums.reshape(by_key_head), *own], dim=-1).softmax(-1)
    joined = weights[..., :1] * attended.reshape(*by_key_head, size).float()
    for step, value in enumerate(values, start=1):
        joined = joined + weights[..., step, None] * value.float()[:, :, None]
    return joined.view(rows, heads, size).to(query.dtype)


def _attend_document(
    query: Tensor, keys: list[Tensor], values: list[Tensor], future: Tensor
) -> Tensor:
    """One softmax over step 0's scores and the later steps' own scores.

    Args:
        query: `[A, r, D]`.
        keys: `[KV, n, D]` of step 0, then `[KV, r, D]` each.
        values: likewise.
        future: `[r, n]` bool, the keys of step 0 that a query must not see.

    Returns:
        `[A, r, D]`.
    """
    if len(keys) == 1:
        return F.scaled_dot_product_attention(
            query[None], keys[0][None], values[0][None], attn_mask=~future, enable_gqa=True
        )[0]
    heads, rows, size = query.shape
    length = future.shape[1]
    grouped = query.view(len(keys[0]), -1, rows, size) * size**-0.5  # [KV, A/KV, r, D]
    scores = (grouped @ keys[0][:, None].transpose(-1, -2)).float()  # [KV, A/KV, r, n]
    own = [(grouped.float() * key[:, None].float()).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.cat([scores.masked_fill(future, -torch.inf), *own], dim=-1).softmax(-1)
    attended = weights[..., :length].to(query.dtype) @ values[0][:, None]
    for step, value in enumerate(values[1:]):
        attended = attended + weights[..., length + step, None].to(query.dtype) * value[:, None]
    return attended.reshape(heads, rows, size)
