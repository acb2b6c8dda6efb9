"""Accelerate: the loader is registered, not prepared, since it divides the samples itself.

    accelerate launch examples/loaders/with_accelerate.py URL --steps 20 --save run

Run again with more steps, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from draft import Draft

import eagle3data as e3


class Steps:
    """A number that is saved with the rest."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def main() -> None:
    """Train, then save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", type=Path, required=True)
    given = parser.parse_args()
    accelerator = Accelerator()
    dataset = e3.open_dataset(given.url)
    loader = e3.StreamingLoader(
        dataset,
        token_budget=1024,
        seed=0,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    draft = Draft(dataset.manifest)
    draft, optimizer = accelerator.prepare(draft, torch.optim.AdamW(draft.parameters(), lr=1e-3))
    steps = Steps()
    accelerator.register_for_checkpointing(loader, steps)
    if given.save.exists():
        accelerator.load_state(str(given.save))

    while steps.done < given.steps:
        for batch in loader:
            loss = draft(batch.to(accelerator.device))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps.done += 1
            accelerator.print(
                f"step {steps.done} loss {loss.item():.4f} {' '.join(batch.sample_ids)}"
            )
            if steps.done == given.steps:
                break
    accelerator.save_state(str(given.save))
    accelerator.end_training()


if __name__ == "__main__":
    main()
