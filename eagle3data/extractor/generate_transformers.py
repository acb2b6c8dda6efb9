"""Batched answers of the target with transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from eagle3data.extractor.chat import ChatEncoder
from eagle3data.extractor.engines.transformers import load_model
from eagle3data.extractor.generate import Answer, AnswerReader, GeneratorOptions, Talk
from eagle3data.extractor.messages import Message

_BATCH_SIZE = 128
_WINDOW_BATCHES = 2


class TransformersGenerator:
    """A target model that answers batches of conversations.

    Attributes:
        window: conversations that it wants at a time, to sort them by length.
    """

    def __init__(
        self, model: str, encoder: ChatEncoder, reader: AnswerReader, options: GeneratorOptions
    ) -> None:
        """Load a model onto the accelerator, where there is one.

        Raises:
            InputError: the model can't be loaded.
        """
        self._encoder, self._reader, self._options = encoder, reader, options
        self._batch_size = options.batch_size or _BATCH_SIZE
        self.window = self._batch_size * _WINDOW_BATCHES
        engine = options.engine
        self._model = load_model(
            model,
            compute_dtype=options.dtype,
            revision=engine.revision,
            trust=engine.trust_remote_code,
        ).to("cuda" if torch.cuda.is_available() else "cpu")

    def converse(self, talks: Sequence[Talk]) -> Iterator[Talk]:
        """Answer a window turn by turn, in batches of talks of like length.

        A batch none of whose answers is wanted is left out; the others are as without it.
        """
        order = iter(sorted(talks, key=lambda talk: (len(talk.blocks), talk.characters)))
        while batch := list(islice(order, self._batch_size)):
            if all(talk.is_kept for talk in batch):
                continue
            torch.manual_seed(batch[0].seed)
            while live := [talk for talk in batch if not talk.is_done]:
                answers = self.answer([talk.ask() for talk in live])
                for talk, answer in zip(live, answers, strict=True):
                    talk.take(answer)
            yield from batch

    def close(self) -> None:
        """Nothing was started: the model goes with its last reference."""

    def answer(self, conversations: Sequence[list[Message]]) -> list[Answer]:
        """Write the next assistant turn of each conversation.

        Padding goes to the left, so that all answers begin in the same column.

        Raises:
            RowError: the chat template refuses a conversation.
        """
        prompts = [self._encoder.prompt_ids(talk) for talk in conversations]
        width = max(map(len, prompts))
        device, pad_id = self._model.device, self._reader.ends[0]
        padding = [width - len(prompt) for prompt in prompts]
        ids = torch.tensor(
            [[pad_id] * pad + ids for pad, ids in zip(padding, prompts, strict=True)],
            device=device,
        )  # [B, width]
        seen = torch.tensor(
            [[0] * pad + [1] * (width - pad) for pad in padding], device=device
        )  # [B, width]
        temperature = self._options.temperature
        sampling: dict[str, Any] = (
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            if temperature
            else {"do_sample": False}
        )
        with torch.inference_mode():
            written = self._model.generate(
                input_ids=ids,
                attention_mask=seen,
                max_new_tokens=self._options.max_new_tokens,
                eos_token_id=self._reader.ends,
                pad_token_id=pad_id,
                **sampling,
            )[:, width:]  # [B, <= max_new_tokens]
        return [
            self._reader.read(row, talk)
            for row, talk in zip(written.tolist(), conversations, strict=True)
        ]
