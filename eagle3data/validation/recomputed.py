"""What `--recompute` asks of whoever can run the target: the states of one sample, and their noise.

Validation doesn't know the engines; it is handed one that keeps these promises.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle3data.schema.manifest import Manifest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Recomputed:
    """One sample as the target computes it.

    Attributes:
        states: the asked layers to `[T, H]`, in the dtype that the model ran in.
        twins: those with a twin to `[T, H]`: a second run in which every decoder layer's input was
            off by about what its dtype rounds by. Two right engines differ like the two runs.
    """

    states: dict[int, Tensor]
    twins: dict[int, Tensor]


class RecomputingTarget(Protocol):
    """A loaded target."""

    @property
    def name(self) -> str:
        """What runs it, with its version."""

    @property
    def compute_dtype(self) -> str:
        """Dtype it runs in."""

    @property
    def final_layer(self) -> int:
        """N: the canonical id of what leaves its last decoder layer."""

    def run(
        self, input_ids: Sequence[int], layers: Collection[int], twins: Collection[int]
    ) -> Recomputed:
        """Run one sample alone, unbatched.

        Args:
            input_ids: `[T]` its tokens.
            layers: canonical ids to return.
            twins: those of them to return twins of as well.
        """

    def norm(self, states: Tensor) -> Tensor:
        """The final norm of `[T, H]` states."""


class Recomputing(Protocol):
    """How many samples to recompute, and the way to the target that does it."""

    @property
    def samples(self) -> int:
        """How many."""

    def load(
        self, model: str, revision: str | None, manifest: Manifest, *, trust_remote_code: bool
    ) -> RecomputingTarget:
        """Load the target.

        Args:
            model: folder or hub id.
            revision: hub revision.
            manifest: of the set, for the dtype that its engine ran in.
            trust_remote_code: let the model's own code run.

        Raises:
            InputError: it can't be loaded.
        """
