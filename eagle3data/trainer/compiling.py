"""torch.compile for the few functions that a step spends its time in."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_VARIANTS = 64
"""Compiled forms kept of one function: one a training-time-test step, with and without gradients.

torch's own limit is 8; past it a function silently runs uncompiled.
"""


def compiled(function: Function, enabled: bool) -> Function:
    """The function, compiled if asked; each is compiled once a process."""
    return _compiled(function) if enabled else function


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    import torch._dynamo

    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, _VARIANTS)
    return torch.compile(function)
