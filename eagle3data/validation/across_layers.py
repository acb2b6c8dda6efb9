"""What one layer shows beside the others: faults of a whole layer, which no sample stands out by.

Three things that every layer of a right set has in common. An engine rounds all of them alike. What
a row's token is for, prompt or answer, moves its magnitude no more at one layer than words do. And
the residual stream keeps its channels: dimension d of a layer goes with dimension d of the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from eagle3data.validation.findings import Severity
from eagle3data.validation.row_facts import FIRST_ROWS, RowFacts
from eagle3data.validation.row_marks import Seen
from eagle3data.validation.token_identity import Sequences

Floats = npt.NDArray[np.float32]

EXACT = 0.01
OTHER_ROUNDING = 0.05
"""Shares of values that no bfloat16 number is: below the first a layer is bfloat16's, above not."""
SPREADS = 6.0
"""Prompt and answer rows differ by less than so many deviations of a sample's own rows."""
LEAST_FACTOR = 3.0
FEWEST_ROWS = 8
FEWEST_SAMPLES = 8
CHANNELS = 512
FEWEST_CHANNEL_ROWS = 256
KEPT = 0.1
"""Of channels go with themselves between layers that are in order: 0.4 to 1 was seen."""
LOST = 0.01


class AcrossLayers:
    """Gathers a little of each layer, and compares them at the end."""

    def __init__(self, sequences: Sequences, masks: list[npt.NDArray[np.bool_]]) -> None:
        """See no layer yet.

        Args:
            sequences: tokens of the probed samples.
            masks: `[T]` of each, true where a token carries loss.
        """
        self._sequences, self._masks = sequences, masks
        self._off_grid: dict[int, float] = {}
        self._regions: dict[int, tuple[float, float]] = {}
        self._channels: dict[int, Floats] = {}

    def look(self, layer: int, facts: RowFacts, within: float) -> None:
        """Take note of a layer.

        Args:
            layer: canonical id.
            facts: of its rows.
            within: deviation of log row norms that is usual within one sample.
        """
        shares = facts.off_grid[np.isfinite(facts.off_grid)]
        if len(shares):
            self._off_grid[layer] = float(np.median(shares))
        region = self._region(facts)
        if region is not None:
            self._regions[layer] = (region, within)

    def see_channels(self, layer: int, rows: Floats) -> None:
        """Take note of `[R, H]` rows of a layer, the same rows of every layer."""
        self._channels[layer] = rows

    def seen(self) -> dict[int, list[Seen]]:
        """What is wrong, by layer."""
        found: dict[int, list[Seen]] = {}
        for layer, one in [*self._rounding(), *self._masked(), *self._disordered()]:
            found.setdefault(layer, []).append(one)
        return found

    def _region(self, facts: RowFacts) -> float | None:
        """Median over samples of how much larger rows with loss are than those without (log)."""
        found = []
        for sample, mask in enumerate(self._masks):
            rows = facts.log_rms[self._sequences.rows(sample)][FIRST_ROWS:]
            trained = mask[FIRST_ROWS:]
            if len(rows) != len(trained) or not np.isfinite(rows).all():
                continue
            if min(trained.sum(), (~trained).sum()) >= FEWEST_ROWS:
                found.append(float(np.median(rows[trained]) - np.median(rows[~trained])))
        return float(np.median(found)) if len(found) >= FEWEST_SAMPLES else None

    def _rounding(self) -> Iterator[tuple[int, Seen]]:
        for layer, share in self._off_grid.items():
            # Embeddings are the checkpoint's own, whatever the engine computes in.
            others = [one for other, one in self._off_grid.items() if other not in (layer, 0)]
            exact = sum(one <= EXACT for one in others)
            if share > OTHER_ROUNDING and 2 * exact > len(others):
                yield (
                    layer,
                    Seen(
                        kind="unlike_rest",
                        sample=None,
                        detail=f"{share:.0%} of the values of most samples have more digits than "
                        f"bfloat16 holds; at {exact} of the {len(others)} other layers none do. "
                        "They were changed after the engine had made them.",
                        expected="values rounded as at the other layers",
                    ),
                )

    def _masked(self) -> Iterator[tuple[int, Seen]]:
        for layer, (region, within) in self._regions.items():
            others = [one for other, (one, _) in self._regions.items() if other != layer]
            if not others:
                continue
            off = region - float(np.median(others))
            if abs(off) > max(SPREADS * within, math.log(LEAST_FACTOR)):
                yield (
                    layer,
                    Seen(
                        kind="unlike_rest",
                        sample=None,
                        detail=f"rows with loss are {math.exp(region):.3g} times as large as those "
                        f"without, in most samples; at the other layers "
                        f"{math.exp(float(np.median(others))):.3g} times.",
                        expected="prompt and answer rows treated alike",
                    ),
                )

    def _disordered(self) -> Iterator[tuple[int, Seen]]:
        """Layers whose channels go with no other layer's, where the others' do."""
        shares = _channel_shares(self._channels)
        for layer in self._channels:
            own = [share for pair, share in shares.items() if layer in pair]
            rest = [share for pair, share in shares.items() if layer not in pair]
            if own and rest and max(own) < LOST and max(rest) > KEPT:
                yield (
                    layer,
                    Seen(
                        kind="unlike_rest",
                        sample=None,
                        detail=f"{max(own):.0%} of its dimensions go with the same dimension of "
                        f"another layer; between other layers up to {max(rest):.0%} do. Its "
                        "dimensions may stand in another order.",
                        expected="a residual stream keeps its channels",
                        severity=Severity.WARNING,
                    ),
                )


def _channel_shares(rows: Mapping[int, Floats]) -> dict[tuple[int, int], float]:
    """Of each two layers, the share of dimensions that correlate with themselves the most."""
    layers = sorted(layer for layer, one in rows.items() if len(one) >= FEWEST_CHANNEL_ROWS)
    normed = {layer: _standard(rows[layer]) for layer in layers}
    found = {}
    for at, low in enumerate(layers):
        for high in layers[at + 1 :]:
            width = normed[low].shape[1]
            some = np.unique(np.linspace(0, width - 1, min(CHANNELS, width)).astype(np.int64))
            related = normed[low][:, some].T @ normed[high]
            found[low, high] = float((related.argmax(1) == some).mean())
    return found


def _standard(rows: Floats) -> Floats:
    unit = rows / np.sqrt(np.square(rows).mean(1, keepdims=True) + 1e-12)
    off = unit - unit.mean(0)
    scaled: Floats = off / (off.std(0) + 1e-6)
    return scaled
