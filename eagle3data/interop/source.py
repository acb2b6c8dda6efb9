"""What a data set in another project's layout is to an import: samples one by one, and facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from eagle3data.schema.layers import NormState


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One stored sample.

    Attributes:
        place: where it lies, relative to the source and unlike any other's: `hs_12.safetensors`.
        row: its number in the source's own order; entries come in this order.
    """

    place: str
    row: int


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A sample's tokens.

    Attributes:
        input_ids: `[T]` int32, what is padding left out.
        loss_mask: `[T]` uint8, unshifted; None where the source has none.
        extra: what else the source says of it.
    """

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8] | None
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """What a source says of itself; None where it doesn't say, and a person has to.

    Attributes:
        slots: states of a token; as many layers have to be named.
        layers: canonical ids, a slot each, in the order of the slots.
        norm_state: whether the last slot's states had the final norm applied.
        dtype: that the states were computed in: `bfloat16`, `float16`, `float32`.
        model: name of the target.
        notes: lines for the person, on what is lost or odd.
    """

    slots: int
    layers: list[int] | None = None
    norm_state: NormState | None = None
    dtype: str | None = None
    model: str | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a person says of a source; can be pickled.

    Attributes:
        path: file or folder.
        format: name of the layout; `auto` looks.
        dataset: folder of the Hugging Face data set with ids and masks, where that is elsewhere.
        pad_token_id: that stored padding has (only SpecForge stores any); None where none is known.
    """

    path: Path
    format: str = "auto"
    dataset: Path | None = None
    pad_token_id: int | None = None


class StateSource(Protocol):
    """An open source. Reading may happen in several threads at once.

    Attributes:
        format: name of its layout.
    """

    format: str

    def facts(self) -> SourceFacts:
        """What it says of itself, from its metadata and its first readable sample.

        Raises:
            InputError: it can't be read at all, or nothing of it is a sample.
        """

    def entries(self) -> list[Entry]:
        """Every sample that should be there, in the source's own order (by number, not by name).

        Cheap: nothing of a sample is read. What is missing is an entry too, and `tokens` refuses
        it.
        """

    def tokens(self, entry: Entry) -> Tokens:
        """Ids and mask, reading as little as can be.

        Raises:
            SampleError: named by the entry's place: missing, damaged, or not what it should be.
        """

    def states(self, entry: Entry) -> list[npt.NDArray[Any]]:
        """Each slot's `[T, H]`, float16 or float32, or uint16 (bfloat16 by its bits).

        Raises:
            SampleError: as `tokens`.
        """
