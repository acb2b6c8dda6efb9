"""The `vllm` engine: an offline vLLM of this process, prefill only.

Requests go in as token ids with one throw-away token asked for, which is the witness; states come
back through the connector's channel and are joined with it by the request's name.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from eagle3data.extractor.engines.base import Captured, CaptureSettings, Request
from eagle3data.extractor.engines.vllm_client import (
    OpenRequests,
    connect,
    request_params,
    run_ahead,
)
from eagle3data.extractor.engines.vllm_process import require_free, start_engine
from eagle3data.extractor.engines.vllm_settings import Doorway, capture_arguments, socket_folder
from eagle3data.extractor.processes import end_own_children, own_pids
from eagle3data.schema.errors import EngineError, InputError

_WINDOW_STEPS = 8
"""Steps' worth of prompt tokens that are handed to the engine ahead of what it has finished."""
_POLL_SECONDS = 1.0


class VllmEngine:
    """A target loaded with vLLM in processes of its own, which end with this one.

    Attributes:
        name: `vllm`.
        version: of vLLM and torch.
        compute_dtype: dtype the model runs in.
        switches: settings that can change the states.
        asked: what it captures.
        llm_engine: vLLM's own.
    """

    name = "vllm"

    def __init__(
        self,
        model: str,
        asked: CaptureSettings,
        *,
        tensor_parallel_size: int = 1,
        revision: str | None = None,
        trust_remote_code: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Load the model.

        Args:
            model: Hugging Face folder or id.
            asked: what to capture.
            tensor_parallel_size: GPUs that share the model.
            arguments: more of vLLM's engine arguments, by their names.

        Raises:
            EngineError: vLLM can't load or run this model.
            InputError: an argument that can't be combined with extraction.
        """
        self.asked = asked
        self._others = own_pids()
        self._folder = socket_folder()
        doorway = Doorway.private(self._folder)
        chosen = engine_arguments(asked, doorway, arguments or {}) | {
            "model": model,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "tensor_parallel_size": tensor_parallel_size,
        }
        self._requests = OpenRequests(asked.layers)
        self._consumer = uuid.uuid4().hex
        try:
            self.llm_engine = start_engine(chosen, in_process=False)
            self._client = connect(doorway, self._consumer, asked)
            # Now, since nothing tidies up after a kill -9: the connection needs its path no more.
            shutil.rmtree(self._folder)
        except BaseException:
            self.close()
            raise
        config = self.llm_engine.vllm_config
        self._window = _WINDOW_STEPS * config.scheduler_config.max_num_batched_tokens
        self.version = _version(self._client.facts)
        self.compute_dtype = str(self._client.facts["compute_dtype"])
        self.switches = {
            "tensor_parallel_size": str(tensor_parallel_size),
            "max_num_batched_tokens": str(config.scheduler_config.max_num_batched_tokens),
        }

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        """Run requests as they come; a few steps' worth of tokens are always ahead."""
        return run_ahead(groups, self._requests, self._window, self._submit, self._step)

    def close(self) -> None:
        """End the engine's processes and wait until they are gone."""
        if hasattr(self, "_client"):
            self._client.close()
        if hasattr(self, "llm_engine"):
            self.llm_engine.engine_core.shutdown()
        end_own_children(keep=self._others)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _submit(self, request: Request) -> None:
        from vllm import SamplingParams, TokensPrompt

        name = self._requests.add(request)
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=1,
            detokenize=False,
            extra_args={"kv_transfer_params": request_params(name, self._consumer)},
        )
        prompt = TokensPrompt(prompt_token_ids=request.input_ids.tolist())
        try:
            with _death_told():
                self.llm_engine.add_request(name, prompt, params)
        except ValueError as error:
            raise InputError(f"vLLM refuses sample {request.sample_id}: {error}") from error

    def _step(self) -> Iterator[Captured]:
        is_running = self.llm_engine.has_unfinished_requests()
        if is_running:
            with _death_told():
                outputs = self.llm_engine.step()
            for output in outputs:
                token = output.outputs[0].token_ids[0]
                logprob = output.outputs[0].logprobs[0][token].logprob
                done = self._requests.answer(output.request_id, token, logprob)
                if done is not None:
                    yield done
        timeout = 0.0 if is_running else _POLL_SECONDS
        while (received := self._client.receive(timeout)) is not None:
            done = self._requests.receive(received)
            if done is not None:
                yield done
            timeout = 0.0


@contextmanager
def _death_told() -> Iterator[None]:
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise EngineError(
            "vLLM ended in the middle of its work; its own messages above say why. What is "
            "committed stays: run the same command again to continue."
        ) from error


def engine_arguments(
    asked: CaptureSettings, doorway: Doorway, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """vLLM's engine arguments for an extraction; the person's own win where they may.

    Raises:
        InputError: one that extraction decides itself, or that was never tried.
    """
    fixed = {
        "dtype": asked.compute_dtype,
        "skip_tokenizer_init": True,
        **capture_arguments(asked.layers, doorway),
    }
    require_free(arguments, fixed, "extract")
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        if arguments.get(name, 1) != 1:
            raise InputError(
                f"--engine-arg {name}={arguments[name]}: extraction was never run like that, so "
                "nobody knows that the states are right. Use --tensor-parallel-size, or start "
                "`extract` several times on one --out: the runs share the shards."
            )
    chosen = {
        # Compiling takes minutes and gains little where whole prompts are run.
        "enforce_eager": True,
        "max_model_len": asked.longest + 1,
        "disable_log_stats": True,
        **arguments,
        **fixed,
    }
    if not isinstance(chosen["max_model_len"], int) or chosen["max_model_len"] <= asked.longest:
        raise InputError(
            f"--engine-arg max_model_len={chosen['max_model_len']}: the longest sample has "
            f"{asked.longest} tokens and the witness is one more."
        )
    return chosen


def _version(facts: Mapping[str, Any]) -> str:
    from importlib.metadata import version

    return f"vllm {facts['vllm']}, torch {version('torch')}"
