"""What tests share: synthetic samples and sets, and the command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.writers.dataset_writer import DatasetWriter

HIDDEN, LAYERS, VOCABULARY = 32, 12, 500
CONVERSATIONS = Path(__file__).parent / "data" / "conversations.jsonl"
"""Prompts of our own, answered by SmolLM2 through `regenerate`."""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def eagle3data(
    *words: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own; `environment` on top of this one's."""
    command = [sys.executable, "-m", "eagle3data.cli.main", *map(str, words)]
    both = {**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=both)


def small_manifest(*, shard_tokens: int = 128, chunk_tokens: int = 16, **changes: Any) -> Manifest:
    """A manifest of a narrow target of 12 layers."""
    axis = TokenAxis(shard_tokens=shard_tokens, chunk_tokens=chunk_tokens)
    return Manifest.synthetic(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, vocab_size=VOCABULARY, axis=axis, **changes
    )


def random_sample(name: str, length: int, seed: int, manifest: Manifest, **more: Any) -> Sample:
    """A sample of normal states; equal arguments make equal samples."""
    rng = np.random.default_rng(seed)
    shape = (length, manifest.hidden_size)
    states = {layer: rng.standard_normal(shape).astype(np.float16) for layer in manifest.layers}
    return Sample(
        hidden_states=states,
        input_ids=rng.integers(0, manifest.target.vocab_size, length),
        loss_mask=rng.integers(0, 2, length),
        sample_id=name,
        **more,
    )


def random_samples(count: int, manifest: Manifest, longest: int = 100) -> list[Sample]:
    """Samples `s0`, `s1`, ... of 1 to `longest` tokens, every fourth of split `eval`."""
    lengths = np.random.default_rng(count).integers(1, longest + 1, count)
    return [
        random_sample(
            f"s{number}", int(length), number, manifest, split="train" if number % 4 else "eval"
        )
        for number, length in enumerate(lengths)
    ]


def write_set(url: str | Path, samples: list[Sample], manifest: Manifest) -> str:
    """Write samples with `DatasetWriter`; returns the URL."""
    with DatasetWriter.create(str(url), manifest) as writer:
        for sample in samples:
            writer.append(sample)
    return str(url)


def same_sample(one: Sample, other: Sample) -> bool:
    """Whether ids, mask and every state are equal to the bit."""
    return (
        list(one.hidden_states) == list(other.hidden_states)
        and np.array_equal(one.input_ids, other.input_ids)
        and np.array_equal(one.loss_mask, other.loss_mask)
        and all(
            np.array_equal(one.hidden_states[layer], other.hidden_states[layer])
            for layer in one.hidden_states
        )
    )
