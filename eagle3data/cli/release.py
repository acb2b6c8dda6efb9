"""`eagle3data release`: hand the GPUs over, and say what still holds their memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, tell
from eagle3data.schema.words import size

if TYPE_CHECKING:
    from eagle3data.extractor.gpu_memory import Gpu, GpuProcess, GpuReport
    from eagle3data.extractor.release import ReleaseReport, RunningExtraction


def release(
    check: Annotated[
        bool, typer.Option("--check", help="End nothing; exit code 1 if memory is held.")
    ] = False,
    pid: Annotated[
        list[int] | None,
        typer.Option(
            "--pid", metavar="P", help="End this process and its descendants too, whose ever it is."
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """End what dead extractions left behind, and say what still holds GPU memory.

    Only processes that an extraction started, and that nobody ends any more, are ended, and those
    that --pid names. An extraction at work is left alone. Exit code 0: nothing holds GPU memory;
    1: something does.

    Example: eagle3data release --check && torchrun train.py
    """
    from eagle3data.extractor.gpu_memory import open_driver
    from eagle3data.extractor.release import release as run

    report = run(open_driver(), pids=pid or (), check=check)
    if json:
        print_json(_as_json(report))
    else:
        _show(report, check=check)
    if not report.is_free:
        raise typer.Exit(1)


def gpu_lines(report: GpuReport) -> list[str]:
    """A report on GPU memory for people, a line a GPU and a line a process."""
    if report.unread:
        return [report.unread]
    return [line for gpu in report.gpus for line in _gpu_lines(gpu)] or ["no GPU is visible here"]


def _gpu_lines(gpu: Gpu) -> list[str]:
    lines = [f"GPU {gpu.index}  {gpu.name}  {size(gpu.used)} of {size(gpu.total)} in use"]
    lines += [f"  {_process_line(process)}" for process in gpu.processes]
    if gpu.unseen:
        lines.append(
            f"  {size(gpu.unseen)} held by processes that can't be seen from here, such as "
            "another container's; look on the host"
        )
    return lines


def _process_line(process: GpuProcess) -> str:
    held = "memory" if process.bytes is None else size(process.bytes)
    if process.is_display:
        whose = "only draws"
    else:
        whose = "an extraction's" if process.ours else "not ours"
    command = f"  {process.command}" if process.command not in {"", process.name} else ""
    return f"{process.pid}  {process.name}  {held}  {whose}{command}"


def _show(report: ReleaseReport, *, check: bool) -> None:
    for fact in report.ended:
        out.print(f"ended {fact}", markup=False)
    for fact in report.left:
        text = (
            f"left behind by a dead extraction: {fact}; `eagle3data release` ends it"
            if check
            else f"would not end: {fact}"
        )
        tell(text)
    for extraction in report.running:
        out.print(_running_line(extraction), markup=False)
    for line in gpu_lines(report.gpu):
        out.print(line, markup=False)
    foreign = {found.pid for found in report.gpu.holders if not found.ours}
    if foreign:
        words = " ".join(f"--pid {number}" for number in sorted(foreign))
        tell(f"Not ours, so left alone; to end them: eagle3data release {words}")


def _running_line(extraction: RunningExtraction) -> str:
    owner, count = extraction.owner, len(extraction.processes)
    if not owner.is_here:
        return f"an extraction in another container ({owner}) is at work, with {count} processes"
    return (
        f"the extraction of process {owner.pid} is at work, with {count} processes: stop it with "
        f"Ctrl-C there, or with `eagle3data release --pid {owner.pid}`"
    )


def _as_json(report: ReleaseReport) -> dict[str, Any]:
    return {
        "free": report.is_free,
        "driver": report.gpu.unread or "read",
        "gpus": [{**asdict(gpu), "unseen": gpu.unseen} for gpu in report.gpu.gpus],
        "ended": _dicts(report.ended),
        "left": _dicts(report.left),
        "running": [
            {"owner": str(run.owner), "pid": run.owner.pid, "processes": _dicts(run.processes)}
            for run in report.running
        ],
    }


def _dicts(facts: Iterable[Any]) -> list[dict[str, Any]]:
    return [asdict(fact) for fact in facts]
