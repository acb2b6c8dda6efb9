"""Answers of the target with vLLM, which batches them as they come and go.

The engine is stepped by this process itself, so that equal windows are run in equal batches. Every
answer samples with a seed of its own. What may still differ between two runs: another window (its
size, or the sources) makes other batches, whose rounding can tip a close decision between two
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from eagle3data.extractor.chat import ChatEncoder
from eagle3data.extractor.engines.vllm_process import is_on_cpu, require_free, start_engine
from eagle3data.extractor.generate import AnswerReader, GeneratorOptions, Talk
from eagle3data.extractor.processes import end_own_children, marked_run, own_pids
from eagle3data.schema.errors import EngineError

_WINDOW = 1024
_CPU_STEP_TOKENS = 2048


class VllmGenerator:
    """A target model that answers windows of conversations.

    Attributes:
        window: conversations that it wants at a time; vLLM decides how many of them run at once.
        llm_engine: vLLM's.
    """

    def __init__(
        self, model: str, encoder: ChatEncoder, reader: AnswerReader, options: GeneratorOptions
    ) -> None:
        """Load the model.

        Raises:
            EngineError: vLLM can't load or run this model.
            InputError: an engine argument that is set here.
        """
        self._encoder, self._reader, self._options = encoder, reader, options
        self.window = options.batch_size or _WINDOW
        chosen = _engine_arguments(model, options)
        self._others = own_pids()
        self._run = ExitStack()
        self._run.enter_context(marked_run())
        self._open: dict[str, Talk] = {}
        self._made = 0
        try:
            self.llm_engine = start_engine(chosen, in_process=True)
        except BaseException:
            self.close()
            raise

    def converse(self, talks: Sequence[Talk]) -> Iterator[Talk]:
        """Answer a window; a talk's next turn is asked as soon as the one before is answered."""
        # What earlier windows left there would be another batch than a run that begins here has.
        self.llm_engine.reset_prefix_cache()
        for talk in talks:
            self._ask(talk)
        while self._open:
            for output in self._step():
                talk = self._open.pop(output.request_id)
                talk.take(self._reader.read(output.outputs[0].token_ids, talk.messages))
                if talk.is_done:
                    yield talk
                else:
                    self._ask(talk)

    def close(self) -> None:
        """End the engine's processes and wait until they are gone."""
        if hasattr(self, "llm_engine"):
            self.llm_engine.engine_core.shutdown()
        end_own_children(keep=self._others)
        self._run.close()

    def _ask(self, talk: Talk) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        prompt = TokensPrompt(prompt_token_ids=self._encoder.prompt_ids(talk.ask()))
        params = SamplingParams(
            max_tokens=self._options.max_new_tokens,
            temperature=self._options.temperature,
            seed=talk.seed + (len(talk.answers) << 32) if self._options.temperature else None,
            stop_token_ids=self._reader.ends,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._made += 1
        name = str(self._made)
        try:
            self.llm_engine.add_request(name, prompt, params)
        except ValueError as error:
            raise EngineError(f"vLLM refuses a conversation: {error}") from error
        self._open[name] = talk

    def _step(self) -> list[Any]:
        """One step of the engine; the answers that it has finished."""
        try:
            return [output for output in self.llm_engine.step() if output.finished]
        except RuntimeError as error:
            raise EngineError(
                f"vLLM ended in the middle of its work ({error}); its own messages above say why. "
                "What is written stays: run the same command again to continue."
            ) from error


def _engine_arguments(model: str, options: GeneratorOptions) -> dict[str, Any]:
    """vLLM's engine arguments; the person's own win where they may."""
    given = options.engine.arguments
    fixed = {"dtype": options.dtype, "skip_tokenizer_init": True}
    require_free(given, fixed, "regenerate")
    return {
        "max_model_len": options.longest,
        "disable_log_stats": True,
        **(_cpu_arguments(options) if is_on_cpu() else {}),
        **given,
        **fixed,
        "model": model,
        "revision": options.engine.revision,
        "trust_remote_code": options.engine.trust_remote_code,
        "tensor_parallel_size": options.engine.tensor_parallel_size,
    }


def _cpu_arguments(options: GeneratorOptions) -> Mapping[str, Any]:
    # Compiling takes longer there than most runs.
    arguments: dict[str, Any] = {"enforce_eager": True}
    if options.temperature:
        # A seeded request whose prompt takes several steps ends the CPU build (its generator
        # "does not use offset").
        longest = max(options.longest, _CPU_STEP_TOKENS)
        arguments |= {"enable_chunked_prefill": False, "max_num_batched_tokens": longest}
    return arguments
