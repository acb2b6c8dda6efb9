"""What an engine is: token ids in, the residual stream at the asked layers out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sample to run.

    Attributes:
        sample_id: comes back with the states.
        input_ids: `[T]` int32.
    """

    sample_id: str
    input_ids: npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Captured:
    """What the engine returned for one request.

    Attributes:
        sample_id: of the request.
        hidden_states: canonical layer id to `[T, H]` in the storage dtype.
        witness_token: the engine's own greedy next token after the last one.
        witness_logprob: the engine's own log-probability (nats) of it.
    """

    sample_id: str
    hidden_states: dict[int, npt.NDArray[Any]]
    witness_token: int
    witness_logprob: float


class Engine(Protocol):
    """A loaded target."""

    name: str
    version: str
    compute_dtype: str
    switches: dict[str, str]

    def capture(self, requests: Sequence[Request]) -> Iterator[Captured]:
        """Run requests, prefill only; results come in any order, each exactly once."""
