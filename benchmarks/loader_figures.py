"""What the benchmarks of the loader in front of a GPU share: the samples, and the figures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from eagle3data import DatasetWriter, Sample, open_dataset
from eagle3data.bench.corpus import LAYERS, MODEL_LAYERS
from eagle3data.bench.loader import TOKENS
from eagle3data.readers.dataset import Dataset
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import Manifest

ON_GPU = torch.cuda.is_available()


@dataclass
class Results:
    """Figures so far, and what is printed of them.

    Attributes:
        figures: what the JSON holds.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        """Print a line, and how long it took to get there."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def add(self, name: str, text: str, **figures: Any) -> None:
        """Note figures of a case, and print them."""
        self.figures[name] = figures
        self.tell(f"{name:34} {text}")


def write_samples(url: str, nbytes: int, *, hidden: int, vocabulary: int) -> Dataset:
    """A set of at least `nbytes` of states; no more than a block of them is held in memory."""
    rng = np.random.default_rng(0)
    manifest = Manifest.synthetic(
        hidden_size=hidden,
        num_hidden_layers=MODEL_LAYERS,
        vocab_size=vocabulary,
        layers=LAYERS,
        axis=TokenAxis(shard_tokens=17_408, chunk_tokens=64),
    )
    shortest, longest = TOKENS
    block = rng.standard_normal((longest * 2, hidden), dtype=np.float32).astype(np.float16)
    written = number = 0
    with DatasetWriter.create(url, manifest) as writer:
        while written < nbytes:
            length = int(rng.integers(shortest, longest + 1))
            first = int(rng.integers(0, longest))
            states = dict.fromkeys(LAYERS, block[first : first + length])
            writer.append(
                Sample(
                    hidden_states=states,
                    input_ids=rng.integers(0, vocabulary, length),
                    loss_mask=np.ones(length, np.uint8),
                    sample_id=f"s{number}",
                )
            )
            written += length * len(LAYERS) * hidden * 2
            number += 1
    return open_dataset(url)


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if ON_GPU:
        torch.cuda.synchronize()
