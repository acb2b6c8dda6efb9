"""States that carry their own token and a trace of the next, as a residual stream does."""

from __future__ import annotations

from typing import Any

import torch

from eagle3data.validation.token_identity import Sequences

VOCABULARY, WIDTH = 40, 64


def texts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Random texts in which every token is common."""
    generator = torch.Generator().manual_seed(seed)
    found: list[list[int]] = torch.randint(
        0, VOCABULARY, (count, length), generator=generator
    ).tolist()
    return found


def states_of(samples: list[list[int]], noise: float = 0.7) -> list[torch.Tensor]:
    """`[T, WIDTH]` float16 a sample: the token's vector, and noise of `noise` times its size."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(VOCABULARY, WIDTH, generator=generator)
    return [
        (vectors[sample] + noise * torch.randn(len(sample), WIDTH, generator=generator)).half()
        for sample in samples
    ]


def judged(samples: list[list[int]], states: list[torch.Tensor], log_alpha: float) -> Any:
    """The identity probe and its sample judge over these."""
    from eagle3data.validation.sample_verdicts import SampleJudge
    from eagle3data.validation.token_identity import features, frequent_tokens, measure

    sequences = Sequences.of(samples)
    rows, _ = features(states.__getitem__, len(states))
    found = measure(rows, sequences, frequent_tokens(sequences), log_alpha)
    return found, SampleJudge(found, sequences, log_alpha)
