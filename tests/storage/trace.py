"""System calls of a Python program, as strace saw them, by the files that they are about."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

# `?`: some machines have only one of link and linkat, mkdir and mkdirat, ...
_CALLS = (
    "write,writev,pwrite64,pwritev,pwritev2,ftruncate,fsync,fdatasync,?link,linkat,?mkdir,mkdirat,"
    "?rename,?renameat,renameat2"
)
_BEGUN = re.compile(r"(\w+)\((.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
_RESULT = re.compile(r"= (-?\d+)[^=]*$")
# A descriptor's file (`7</a/b>`) or a name (`"/a/b"`).
_PATH = re.compile(r"\d+<(/[^>]*)>|\"(/[^\"]*)\"")


@dataclass
class Call:
    """One system call that succeeded.

    Attributes:
        paths: absolute paths among its arguments, in their order.
        start: number of the line where it began.
        stop: number of the line where it had returned.
    """

    name: str
    paths: list[Path]
    start: int
    stop: int


def traced(code: str, log: Path, *arguments: object) -> list[Call]:
    """Run Python code under strace, its threads too.

    Skips the test where strace is not installed or may not trace.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = ["strace", "-f", "-y", "-s", "0", "-o", str(log), "-e", f"trace={_CALLS}"]
    if subprocess.run([*trace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    subprocess.run([*trace, sys.executable, "-c", code, *map(str, arguments)], check=True)
    return parse(log.read_text().splitlines())


def parse(lines: Sequence[str]) -> list[Call]:
    """The calls of a log; those that other threads interrupted are put together."""
    unfinished: dict[str, Call] = {}
    calls = []
    for number, line in enumerate(lines):
        thread, rest = line.split(maxsplit=1)
        if begun := _BEGUN.match(rest):
            paths = [Path(found[1] or found[2]) for found in _PATH.finditer(begun[2])]
            call = Call(begun[1].removesuffix("at").removesuffix("at2"), paths, number, number)
            if rest.endswith("<unfinished ...>"):
                unfinished[thread] = call
                continue
        elif _RESUMED.match(rest):
            call = unfinished.pop(thread)
            call.stop = number
        else:
            continue
        result = _RESULT.search(rest)
        if result is not None and int(result[1]) >= 0:
            calls.append(call)
    return calls
