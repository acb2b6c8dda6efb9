"""The draft vocabulary: the target's most frequent tokens, counted from the index alone. No torch.

`d2t` holds OFFSETS, as every engine reads it: draft token i is target token `i + d2t[i]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eagle3data.schema.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class VocabularyMap:
    """Draft tokens to target tokens and back.

    Attributes:
        d2t: `[Vd]` int64, target id less draft id.
        t2d: `[V]` bool, whether the draft can propose the target's token.
    """

    d2t: npt.NDArray[np.int64]
    t2d: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Check that the two halves are one map.

        Raises:
            InputError: `nonzero(t2d)` is not `d2t + arange`.
        """
        if not np.array_equal(np.flatnonzero(self.t2d), self.draft_ids):
            raise InputError(
                "the vocabulary map contradicts itself: the tokens set in t2d are not i + d2t[i]. "
                "d2t must hold offsets (target id less draft id) in ascending order of target id."
            )

    @property
    def draft_ids(self) -> npt.NDArray[np.int64]:
        """`[Vd]`, the target id of each draft token, ascending."""
        return self.d2t + np.arange(len(self.d2t), dtype=np.int64)

    @classmethod
    def most_frequent(cls, counts: npt.NDArray[np.int64], draft_vocab_size: int) -> VocabularyMap:
        """The `draft_vocab_size` most frequent tokens; of equally frequent ones the lower ids.

        Args:
            counts: `[V]`, how often each target token carries loss.
            draft_vocab_size: Vd.

        Raises:
            InputError: Vd is not between 1 and V.
        """
        if not 0 < draft_vocab_size <= len(counts):
            raise InputError(
                f"draft_vocab_size is {draft_vocab_size}; the target's vocabulary has "
                f"{len(counts)} tokens, so 1 to {len(counts)} are possible."
            )
        draft_ids = np.sort(np.argsort(-counts, kind="stable")[:draft_vocab_size])
        t2d = np.zeros(len(counts), dtype=np.bool_)
        t2d[draft_ids] = True
        return cls(d2t=draft_ids - np.arange(draft_vocab_size), t2d=t2d)


def count_tokens(
    index: pa.Table, vocab_size: int, split: str | None = None
) -> npt.NDArray[np.int64]:
    """How often each token carries loss, `[V]` int64.

    Args:
        index: rows of a data set (`INDEX_SCHEMA`); its states are not touched.
        vocab_size: V.
        split: count this split only.
    """
    if split is not None:
        index = index.filter(pa.array([value == split for value in index["split"].to_pylist()]))
    tokens = pc.list_flatten(index["input_ids"]).to_numpy()
    kept = pc.list_flatten(index["loss_mask"]).to_numpy()
    return np.bincount(tokens[kept.astype(bool)], minlength=vocab_size)
