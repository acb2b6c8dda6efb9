"""The numbers behind the semantic verdict, as plain data: what a report can plot."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class ByShift:
    """How often a prediction is the token `shift` places from a row's own.

    Attributes:
        shifts: tokens, ascending; negative is to the left.
        shares: of the tested rows, 0 to 1, one a shift.
        best: the shift that stands out from all others; None where none does.
        tested: rows.
    """

    shifts: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    best: int | None = None
    tested: int = 0


@dataclass(kw_only=True)
class RmsByPosition:
    """Root mean square of single rows along the samples, over the probed samples.

    Positions are gathered into stretches that widen with the position. Lists have one entry a
    stretch; zero and not finite rows don't count.

    Attributes:
        start: first position of the stretch.
        stop: past-the-last position of the stretch.
        low: 5th percentile over the rows of the stretch.
        median: 50th percentile.
        high: 95th percentile.
    """

    start: list[int] = field(default_factory=list)
    stop: list[int] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    median: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class LayerMeasured:
    """One captured layer.

    Attributes:
        layer: canonical id.
        identity: the token-identity probe; the right shift is 0.
        identity_chance: share that a stranger's rows would reach, 0 to 1.
        next_token: the next-token probe through the target's head; the right shift is +1, clearest
            at the final layer. None without the target's weights.
        rms: of rows, by position.
    """

    layer: int
    identity: ByShift
    identity_chance: float
    next_token: ByShift | None
    rms: RmsByPosition


@dataclass(kw_only=True)
class Witnesses:
    """Every sample's last row against the engine's own next token.

    Attributes:
        samples: those that have a witness and could be read.
        agreeing: those that give the engine's token at its log-probability.
        difference: percentiles 0, 1, ... 100 of the absolute difference in log-probability (nats).
    """

    samples: int = 0
    agreeing: int = 0
    difference: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Measured:
    """What the semantic level measured.

    Attributes:
        layers: every captured layer, ascending; empty where there were too few tokens to probe.
        witness: None without the target's weights or without witnesses.
        probed: samples whose states the probes read.
    """

    layers: list[LayerMeasured] = field(default_factory=list)
    witness: Witnesses | None = None
    probed: int = 0
