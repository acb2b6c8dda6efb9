"""Batched answers of the target with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3data.extractor.chat import ChatEncoder
from eagle3data.extractor.messages import Message
from eagle3data.schema.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: its text, its length in tokens, and whether the limit cut it off."""

    text: str
    tokens: int
    cut: bool


class TargetGenerator:
    """A target model that answers batches of conversations."""

    def __init__(
        self,
        model: str,
        encoder: ChatEncoder,
        *,
        dtype: str,
        max_new_tokens: int,
        temperature: float = 0.0,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        """Load a model onto the accelerator, where there is one.

        Args:
            model: folder or id.
            encoder: of the same model.

        Raises:
            InputError: the model can't be loaded, or nothing is known to end its answers.
        """
        import torch

        from eagle3data.extractor.engines.transformers import load_model

        if dtype not in ("bfloat16", "float16", "float32"):
            raise InputError(f"dtype {dtype}; expected bfloat16, float16 or float32.")
        if not encoder.stop_ids:
            raise InputError(f"{model} names no token that ends an answer (eos_token_id).")
        self._encoder = encoder
        self._ends = sorted(encoder.stop_ids)
        self._model = load_model(
            model, compute_dtype=dtype, revision=revision, trust=trust_remote_code
        ).to("cuda" if torch.cuda.is_available() else "cpu")
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature

    def seed(self, value: int) -> None:
        """Begin the sampling anew; greedy answers don't care."""
        import torch

        torch.manual_seed(value)

    def answer(self, conversations: Sequence[list[Message]]) -> list[Answer]:
        """Write the next assistant turn of each conversation.

        Padding goes to the left, so that all answers begin in the same column.

        Raises:
            RowError: the chat template refuses a conversation.
        """
        import torch

        prompts = [self._encoder.prompt_ids(talk) for talk in conversations]
        width = max(map(len, prompts))
        device = self._model.device
        padding = [width - len(prompt) for prompt in prompts]
        ids = torch.tensor(
            [[self._ends[0]] * pad + ids for pad, ids in zip(padding, prompts, strict=True)],
            device=device,
        )  # [B, width]
        seen = torch.tensor(
            [[0] * pad + [1] * (width - pad) for pad in padding], device=device
        )  # [B, width]
        sampling: dict[str, Any] = (
            {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0}
            if self._temperature
            else {"do_sample": False}
        )
        with torch.inference_mode():
            written = self._model.generate(
                input_ids=ids,
                attention_mask=seen,
                max_new_tokens=self._max_new_tokens,
                eos_token_id=self._ends,
                pad_token_id=self._ends[0],
                **sampling,
            )[:, width:]  # [B, <= max_new_tokens]
        return [self._read(row) for row in written.tolist()]

    def _read(self, ids: list[int]) -> Answer:
        end = next((at for at, token in enumerate(ids) if token in self._ends), None)
        answer = ids if end is None else ids[:end]
        text = self._encoder.decode(answer)
        cut = end is None
        # A limit may fall inside a character of several tokens.
        text = text.rstrip("\N{REPLACEMENT CHARACTER}") if cut else text
        return Answer(text=text, tokens=len(answer) + (not cut), cut=cut)
