"""Hand the GPUs over: end what an extraction left behind, and see that its memory is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from eagle3data.extractor.gpu_memory import Driver, GpuReport, read_gpus, wait_for_gpu
from eagle3data.extractor.processes import (
    GRACE_SECONDS,
    ProcessFacts,
    Run,
    end_process_tree,
    has_ended,
    is_this_or_around,
    our_runs,
    with_descendants,
)
from eagle3data.schema.errors import InputError
from eagle3data.storage.owner import Owner

WAIT_SECONDS = 30.0
"""How long the driver gets to free the memory of processes that have ended."""


@dataclass(frozen=True, kw_only=True)
class RunningExtraction:
    """An extraction that is at work, and therefore left alone.

    Attributes:
        owner: its first process; Ctrl-C there ends it.
        processes: all of it that can be seen.
    """

    owner: Owner
    processes: tuple[ProcessFacts, ...]


@dataclass(frozen=True, kw_only=True)
class ReleaseReport:
    """What was ended, and what holds GPU memory now.

    Attributes:
        ended: processes that were ended.
        left: processes that had to end, and did not; with `check`, those that would be ended.
        running: extractions at work.
        gpu: what holds memory.
    """

    ended: tuple[ProcessFacts, ...] = ()
    left: tuple[ProcessFacts, ...] = ()
    running: tuple[RunningExtraction, ...] = ()
    gpu: GpuReport = field(default_factory=GpuReport)

    @property
    def is_free(self) -> bool:
        """Whether nothing holds GPU memory, and nothing waits to be ended."""
        return self.gpu.is_free and not self.left


def release(
    driver: Driver | None,
    *,
    pids: Sequence[int] = (),
    check: bool = False,
    grace: float = GRACE_SECONDS,
    timeout: float = WAIT_SECONDS,
) -> ReleaseReport:
    """End the processes that dead extractions left behind, and whatever is named by pid.

    Args:
        driver: as `open_driver` gives it; None where there is no GPU.
        pids: processes to end too, with their descendants, whoever started them.
        check: end nothing, only look.
        grace: seconds between SIGTERM and SIGKILL.
        timeout: seconds for the driver to free their memory.

    Raises:
        InputError: a pid that names no process, or one that this one runs in.
        DriverError: the driver can't be read.
    """
    named = [_process(pid) for pid in pids]
    runs = our_runs()
    orphans = [process for run in runs if run.is_orphaned for process in run.processes]
    roots = [process for process in orphans if not is_this_or_around(process)] + named
    if check or not roots:
        left = tuple(map(ProcessFacts.of, roots))
        return ReleaseReport(left=left, running=_running(runs), gpu=read_gpus(driver))
    facts = [ProcessFacts.of(process) for process in with_descendants(roots)]
    staying = end_process_tree(roots, grace=grace)
    held = {process.pid for process in staying}
    pids_before = [fact.pid for fact in facts]
    return ReleaseReport(
        ended=tuple(fact for fact in facts if fact.pid not in held),
        left=tuple(map(ProcessFacts.of, staying)),
        running=_running(our_runs()),
        gpu=read_gpus(None) if driver is None else wait_for_gpu(pids_before, timeout, driver),
    )


def _process(pid: int) -> psutil.Process:
    try:
        process = psutil.Process(pid)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        raise InputError(f"--pid {pid}: there is no such process. Nothing was ended.") from None
    if is_this_or_around(process):
        raise InputError(
            f"--pid {ProcessFacts.of(process)} is this command, or what it was started from. "
            "Nothing was ended."
        )
    return process


def _running(runs: Sequence[Run]) -> tuple[RunningExtraction, ...]:
    return tuple(
        RunningExtraction(
            owner=run.owner,
            processes=tuple(
                ProcessFacts.of(process) for process in run.processes if not has_ended(process)
            ),
        )
        for run in runs
        if not run.is_orphaned
    )
