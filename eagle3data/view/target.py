"""The target as pages use it: its tokenizer for text, its head for what a state foretells."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import Eagle3DataError, InputError
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.target import describe_tokenizer, model_folder
from eagle3data.view.settings import Settings

if TYPE_CHECKING:
    from eagle3data.storage.model_weights import TargetHead

_ROWS_AT_ONCE = 128
_BROKEN = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """What the head says of one state.

    Attributes:
        token: the most likely next token.
        share: its probability.
        real: the token that did come next.
        real_share: its probability.
        rank: its place among all tokens, 1 for the most likely.
    """

    token: int
    share: float
    real: int
    real_share: float
    rank: int


class Target:
    """Loaded piece by piece when a page first wants it; any thread may ask."""

    def __init__(self, settings: Settings) -> None:
        """Name the model; nothing is loaded yet."""
        self._settings = settings
        self._model = settings.model or ""
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._head: TargetHead | None = None

    def prepare(self) -> None:
        """Load the tokenizer, so that the first sample need not wait; its page says what fails."""
        with suppress(Eagle3DataError):
            self.tokenizer()

    def tokenizer(self) -> Any:
        """The target's tokenizer.

        Raises:
            InputError: there is none, or transformers can't load it.
        """
        with self._lock:
            if self._tokenizer is None:
                from eagle3data.storage.tokenizer import load_tokenizer

                self._tokenizer = load_tokenizer(
                    self._model,
                    revision=self._settings.revision,
                    trust_remote_code=self._settings.trust_remote_code,
                )
            return self._tokenizer

    def is_of(self, manifest: Manifest) -> bool:
        """Whether its tokenizer is the one that made the set's tokens, as far as both say."""
        known = manifest.tokenizer.digest
        found = describe_tokenizer(model_folder(self._model, self._settings.revision)).digest
        return known is None or found is None or known == found

    def head(self) -> TargetHead:
        """The target's final norm and lm_head.

        Raises:
            InputError: a model whose head is not known, or no torch to run it.
        """
        with self._lock:
            if self._head is None:
                try:
                    from eagle3data.storage.model_weights import load_head

                    self._head = load_head(self._model, self._settings.revision)
                except ModuleNotFoundError as error:
                    raise InputError(
                        f"what the head says needs {error.name}: "
                        "pip install 'eagle3data[transformers]'."
                    ) from None
            return self._head


def foretold(
    head: TargetHead, states: npt.NDArray[Any], following: Sequence[int], *, post_norm: bool
) -> list[Foretold]:
    """What lm_head(norm(y)) says of `[T, H]` stored final states, and of the tokens that came.

    Args:
        head: the target's.
        states: float16, or uint16 bits of bfloat16.
        following: `[T]` the token that came after each row.
        post_norm: the states carry the final norm already.
    """
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(states))
    if states.dtype == np.uint16:
        tensor = tensor.view(torch.bfloat16)
    found = []
    for start in range(0, len(states), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        logits = head.logits(tensor[some], post_norm=post_norm)
        real = torch.tensor(following[some])[:, None]
        own = logits.gather(1, real)
        rank = (logits > own).sum(1) + 1
        total = logits.logsumexp(1, keepdim=True)
        best, token = logits.max(1)
        columns = zip(
            token.tolist(),
            (best - total[:, 0]).exp().tolist(),
            real[:, 0].tolist(),
            (own - total).exp()[:, 0].tolist(),
            rank.tolist(),
            strict=True,
        )
        found += [
            Foretold(token=one, share=p, real=came, real_share=q, rank=place)
            for one, p, came, q, place in columns
        ]
    return found


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to those before it.

    A token that holds a part of a character adds nothing; the one that completes it adds it whole.
    """
    found = []
    begin = at = 0  # `begin` to `at` is context: some tokenizers drop the first one's space
    for end in range(1, len(ids) + 1):
        before = tokenizer.decode(ids[begin:at])
        now = tokenizer.decode(ids[begin:end])
        if now.endswith(_BROKEN) and end < len(ids):
            found.append("")
            continue
        found.append(now[len(before) :])
        begin, at = at, end
    return found
