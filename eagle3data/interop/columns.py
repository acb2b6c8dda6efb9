"""Token ids, masks and states as a source stores them, made into ours or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.interop.floats import dtype_name

_INT32 = np.iinfo(np.int32)


def token_ids(values: npt.NDArray[Any], place: str) -> npt.NDArray[np.int32]:
    """Stored ids, `[T]` or `[1, T]` of any integers, as `[T]` int32.

    Raises:
        SampleError: no row of integers, none at all, or one that is no token id.
    """
    row = _row(values, place, "input_ids")
    if row.dtype.kind not in "iu":
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"its token ids are {row.dtype}",
            "integers",
            "The file is of another layout; name it with --format.",
        )
    if not len(row):
        raise refusals.refusal(
            refusals.LENGTH, place, "it has no tokens", "at least one", "Leave it out."
        )
    if row.min() < 0 or row.max() > _INT32.max:
        raise refusals.refusal(
            refusals.TOKENS_INVALID,
            place,
            f"token ids from {row.min()} to {row.max()}",
            "ids of the target's vocabulary",
            "Was another tokenizer used, or are these ids of images? Extract it again.",
        )
    return row.astype(np.int32)


def loss_mask(values: npt.NDArray[Any], length: int, place: str) -> npt.NDArray[np.uint8]:
    """A stored mask of 0 and 1 in any dtype, as `[length]` uint8.

    Raises:
        SampleError: another length, or other values.
    """
    row = _row(values, place, "loss_mask")
    if len(row) != length:
        raise refusals.refusal(
            refusals.LENGTH,
            place,
            f"{len(row)} mask values beside {length} token ids",
            "one a token",
            "Extract it again.",
        )
    mask = row.astype(np.uint8)
    if not np.array_equal(mask, row) or (len(mask) and mask.max() > 1):
        raise refusals.refusal(
            refusals.MASK_INVALID,
            place,
            "its loss mask holds other values than 0 and 1",
            "0 and 1",
            "Weights can't be kept: round them and write the source again.",
        )
    return mask


def slots_of(states: npt.NDArray[Any], hidden_size: int, place: str, name: str) -> int:
    """How many states of `hidden_size` lie side by side in stored `[T, slots * H]`.

    Raises:
        SampleError: another rank, width or dtype.
    """
    if states.ndim != 2 or not states.shape[1] or states.shape[1] % hidden_size:
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"{name} is {list(states.shape)}",
            f"[tokens, a multiple of {hidden_size}], the target's hidden size",
            "Is it the right --model? Else extract it again.",
        )
    if dtype_name(states) is None:
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"{name} is of {states.dtype}",
            "bfloat16, float16 or float32",
            "Cast it in the source.",
        )
    return int(states.shape[1]) // hidden_size


def split(states: npt.NDArray[Any], hidden_size: int) -> list[npt.NDArray[Any]]:
    """Views `[T, H]`, one a slot, of `[T, slots * H]`."""
    return [
        states[:, start : start + hidden_size] for start in range(0, states.shape[1], hidden_size)
    ]


def same_length(name: str, found: int, tokens: int, place: str, beside: str = "token ids") -> None:
    """Refuse states that are not one row a token, or a row of the states `beside` them.

    Raises:
        SampleError: they are not.
    """
    if found != tokens:
        raise refusals.refusal(
            refusals.LENGTH,
            place,
            f"{found} rows of {name} beside {tokens} {beside}",
            "one row a token",
            "A prefix cache that was left on returns fewer rows; extract it again.",
        )


def same_dtype(name: str, states: npt.NDArray[Any], final: npt.NDArray[Any], place: str) -> None:
    """Refuse states that are not in the final state's dtype.

    Raises:
        SampleError: they are not.
    """
    if states.dtype != final.dtype:
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"{name} is {dtype_name(states)}, the final state {dtype_name(final)}",
            "one dtype",
            "Cast them in the source.",
        )


def without_batch(array: npt.NDArray[Any], rank: int) -> npt.NDArray[Any]:
    """The array without leading axes of length 1, down to `rank` axes."""
    while array.ndim > rank and array.shape[0] == 1:
        array = array[0]
    return array


def _row(values: npt.NDArray[Any], place: str, name: str) -> npt.NDArray[Any]:
    row = without_batch(values, 1)
    if row.ndim != 1:
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"{name} is {list(values.shape)}",
            "one row",
            "Is it a batch of several samples? Write each to a file of its own.",
        )
    return row
