"""The shift: which token, teacher, mask and rotary position belong to base position t at step s.

Data sets store their arrays unshifted; nothing else in the package shifts. With tokens `x`,
mask `m` and final states `y`, at base position t and training-time-test step s (from 0):

    token input        x[t+1+s]       always the real token, never the draft's own guess
    teacher            y[t+1+s]       the distribution of x[t+2+s]
    rotary position    t+s            counted inside the document
    kept when          m[t+1+s]       `serving`: an assistant's span a..b trains the drafting of
                                      x[a+1] to x[b+1]; a server's first draft call gives x[a+1]
                       m[t+s]         `eagle`: x[a+2] to x[b+2] (EAGLE, SpecForge, TorchSpec)

A worked example, one document of five tokens, the last three the assistant's:

    x = [10 11 12 13 14]   m = [0 0 1 1 1]
    s = 0: token    [11 12 13 14  -]     s = 1: token    [12 13 14  -  -]
           teacher  [ 1  2  3  4  -]            teacher  [ 2  3  4  -  -]
           serving  [ 0  1  1  1  0]            serving  [ 1  1  1  0  0]
           eagle    [ 0  0  1  1  0]            eagle    [ 0  1  1  0  0]

A place marked `-` lies past the document's end. In a pack the same rule holds at every
document's end: nothing of one document reaches the next.

Host arrays, not tensors: torch starts a team of threads for arrays as small as a pack's, and a
team waits for its slowest member, 50 times as long as the work takes when other threads keep
the processors busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class MaskAlignment(StrEnum):
    """Whose mask value decides whether (t, s) is trained on."""

    SERVING = "serving"
    EAGLE = "eagle"


@dataclass(frozen=True, kw_only=True)
class ShiftedStep:
    """One step's view of a pack; every array is `[T]`, indexed by base position.

    Attributes:
        token_ids: int64, x[t+1+s]; 0 past a document's end.
        teacher_positions: int64, t+1+s; -1 past a document's end.
        rotary_positions: int64, t+s counted inside the document.
        keep: bool, whether the pair (t, s) is trained on and measured.
    """

    token_ids: np.ndarray
    teacher_positions: np.ndarray
    rotary_positions: np.ndarray
    keep: np.ndarray


def shift(
    *,
    input_ids: np.ndarray,
    loss_mask: np.ndarray,
    position_ids: np.ndarray,
    document_ids: np.ndarray,
    step: int,
    alignment: MaskAlignment = MaskAlignment.SERVING,
) -> ShiftedStep:
    """Shift a pack for one training-time-test step.

    Args:
        input_ids: `[T]` integer token ids, unshifted.
        loss_mask: `[T]`, nonzero where the token is the assistant's.
        position_ids: `[T]`, from 0 in every sample; the pieces of one that was split go on.
        document_ids: `[T]`, one number a document, -1 for padding.
        step: s, from 0.
        alignment: which mask value keeps (t, s).
    """
    ahead = np.arange(len(input_ids)) + 1 + step
    reachable = ahead.clip(max=len(input_ids) - 1)
    inside = (
        (ahead < len(input_ids)) & (document_ids >= 0) & (document_ids[reachable] == document_ids)
    )
    masked = loss_mask != 0
    weighed_at = reachable if alignment is MaskAlignment.SERVING else (reachable - 1).clip(min=0)
    return ShiftedStep(
        token_ids=np.where(inside, input_ids[reachable].astype(np.int64), 0),
        teacher_positions=np.where(inside, reachable, -1),
        rotary_positions=position_ids.astype(np.int64) + step,
        keep=inside & masked[weighed_at],
    )


def token_positions(base: Tensor, step: int) -> Tensor:
    """Where the token input of base positions lies at a step: t+1+s, as in `ShiftedStep`.

    For what is computed once a token and used at every step. Positions may pass a document's
    end, and the pack's by at most `step + 1`: no (t, s) there is kept, and no kept one sees it.
    """
    return base + 1 + step
