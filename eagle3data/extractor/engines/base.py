"""What an engine is: token ids in, the residual stream at the asked layers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from eagle3data.schema.errors import SampleError
from eagle3data.schema.manifest import StorageDtype
from eagle3data.schema.statistics import LayerStatistics


def _keep() -> None:
    """Memory of its own is freed with its last reference."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sample to run.

    Attributes:
        sample_id: of the sample.
        shard: that the sample belongs to.
        input_ids: `[T]` int32.
        source: the place that the sample comes from.
    """

    sample_id: str
    shard: int
    input_ids: npt.NDArray[np.int32]
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """What the engine returned for one request.

    Attributes:
        request: what was asked for.
        hidden_states: canonical layer id to `[T, H]` in the storage dtype.
        witness_token: the engine's own greedy next token after the last one; None where no engine
            ran.
        witness_logprob: the engine's own log-probability (nats) of it.
        problem: why there are no states after all; the sample then goes to the ledger.
        statistics: of the layers for which the engine has found them itself.
        release: call it when the states are not needed any more; their memory may be used again
            from then on.
    """

    request: Request
    hidden_states: dict[int, npt.NDArray[Any]]
    witness_token: int | None
    witness_logprob: float | None
    problem: SampleError | None = None
    statistics: Mapping[int, LayerStatistics] = field(default_factory=dict)
    release: Callable[[], None] = _keep


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """What a plan asks of an engine.

    Attributes:
        layers: canonical ids to capture, ascending, each once.
        hidden_size: H of the target.
        storage_dtype: what the states are cast to, on the device.
        compute_dtype: dtype to run in: `bfloat16`, `float16` or `float32`.
        longest: tokens of the longest sample.
    """

    layers: Sequence[int]
    hidden_size: int
    storage_dtype: StorageDtype
    compute_dtype: str
    longest: int


class Engine(Protocol):
    """A loaded target."""

    name: str
    version: str
    compute_dtype: str
    switches: dict[str, str]

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        """Run requests, prefill only; results come in any order, each exactly once.

        Args:
            groups: of requests, a shard's together; drawn from while there is room for more. A
                None says that nothing is to be had at present: finish what was begun, then ask
                again.
        """

    def close(self) -> None:
        """End what the engine has started, and wait until it is gone; may be called twice."""
