"""A vLLM engine of this process: how it is started, wherever it runs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import FrameType
from typing import Any

from eagle3data.extractor.engines.vllm_settings import TRIED_WITH
from eagle3data.schema.errors import EngineError, InputError

_CPU_CACHE_BYTES = 2 << 30
_GRUMBLERS = ("vllm.renderers.base", "vllm.v1.engine.input_processor")
"""They warn, with a traceback, that token ids come without a tokenizer."""


def require_free(arguments: Mapping[str, Any], taken: Iterable[str], command: str) -> None:
    """Refuse engine arguments of a person's that a command sets itself.

    Raises:
        InputError: the first of them.
    """
    for name in (*taken, "model", "revision", "tensor_parallel_size", "trust_remote_code"):
        if name in arguments:
            raise InputError(f"--engine-arg {name}: {command} sets it itself.")


def is_on_cpu() -> bool:
    """Whether the vLLM that is installed is its CPU build."""
    _set_environment()
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def start_engine(arguments: Mapping[str, Any], *, in_process: bool) -> Any:
    """Load a model; vLLM's `LLMEngine`.

    Args:
        arguments: vLLM's engine arguments.
        in_process: schedule in this process, step by step, so that equal requests are run in equal
            batches; else in a process beside it, which is faster where this one has much to do.

    Raises:
        EngineError: vLLM can't load or run this model.
    """
    on_cpu = is_on_cpu()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if in_process else "1"
    from vllm import LLM

    for name in _GRUMBLERS:
        # A level would be reset: vLLM sets up its logging again.
        logging.getLogger(name).addFilter(_is_error)
    memory = {"gpu_memory_utilization", "kv_cache_memory_bytes"} & arguments.keys()
    if on_cpu and not (memory or "VLLM_CPU_KVCACHE_SPACE" in os.environ):
        # By default vLLM reserves most of a GPU's memory, and of a CPU's as well.
        arguments = {"kv_cache_memory_bytes": _CPU_CACHE_BYTES, **arguments}
    try:
        with _interruptible():
            engine = LLM(**arguments).llm_engine
    except (
        ValueError,
        RuntimeError,
        NotImplementedError,
        TypeError,
        AssertionError,
        OSError,
    ) as error:
        raise EngineError(
            f"vLLM could not start with this model: {error} Its own messages above say more "
            f"(extraction was tried with vLLM {' to '.join(TRIED_WITH)}). "
            "--engine transformers runs every causal language model of Hugging Face, slower."
        ) from error
    if not in_process:
        threading.Thread(target=_watch, args=(engine.engine_core,), daemon=True).start()
    return engine


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a load: vLLM swallows it in one place, and fails of it in others."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    told: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        told.append(number)
        previous(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if told:
            raise KeyboardInterrupt


def _watch(core: Any) -> None:
    """Wake who waits for an answer of an engine that was killed: vLLM lets it wait for ever."""
    from vllm.v1.engine.exceptions import EngineDeadError

    wait([process.sentinel for process in core.resources.engine_manager.processes])
    core.resources.engine_dead = True
    core.outputs_queue.put_nowait(EngineDeadError())


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _set_environment() -> None:
    # Threads run here already (claims, queues), which a forked process would not survive.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    # The witness comes after the last token, also where a sample fills the context.
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # Standard output belongs to the result of a command.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
