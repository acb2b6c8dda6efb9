"""Cases that take turns, so that a noisy machine is as unkind to one as to another."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eagle3data.bench.machine import device_bytes_read


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to time.

    Attributes:
        name: as the table shows it.
        run: what is timed.
        nbytes: bytes that it moves (or whatever else is counted).
        before: put things in place; not timed.
        after: clear up; not timed.
        checks: whether it compares checksums; None where there are none to compare.
        base: name of the case that its speed is compared with.
    """

    name: str
    run: Callable[[], object]
    nbytes: int
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None
    checks: bool | None = None
    base: str | None = None


@dataclass(kw_only=True)
class Timing:
    """What a case took.

    Attributes:
        case: the case.
        seconds: of each round.
        device_bytes: what the device delivered meanwhile, each round; empty without a device.
    """

    case: Case
    seconds: list[float] = field(default_factory=list)
    device_bytes: list[int] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Bytes a second, by the median round."""
        return self.case.nbytes / statistics.median(self.seconds)

    @property
    def from_device(self) -> float | None:
        """Share of the bytes that came from the device, by the median round."""
        if not self.device_bytes:
            return None
        return statistics.median(self.device_bytes) / self.case.nbytes


def take_turns(cases: Sequence[Case], rounds: int, device: str | None = None) -> list[Timing]:
    """Run each case once a round, each round beginning with another one.

    Args:
        cases: what to time.
        rounds: how often each.
        device: whose read counter to note beside the time.
    """
    timings = [Timing(case=case) for case in cases]
    for turn in range(rounds):
        first = turn % len(timings)
        for timing in timings[first:] + timings[:first]:
            _once(timing, device)
    return timings


def _once(timing: Timing, device: str | None) -> None:
    timing.case.before()
    read_before = device_bytes_read(device) if device else 0
    begin = time.perf_counter()
    timing.case.run()
    timing.seconds.append(time.perf_counter() - begin)
    if device:
        timing.device_bytes.append(device_bytes_read(device) - read_before)
    timing.case.after()
