"""Lightning: the loader is the train loader, and its checkpoints hold the place in the data.

    python examples/loaders/with_lightning.py URL --steps 20 --save run.ckpt

Run again with more steps, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytorch_lightning as lightning
import torch
from draft import Draft

import eagle3data as e3


class Module(lightning.LightningModule):
    """The draft, as Lightning wants it."""

    def __init__(self, manifest: e3.Manifest) -> None:
        """Take the sizes from a data set's manifest."""
        super().__init__()
        self.draft = Draft(manifest)

    def training_step(self, batch: e3.Batch) -> torch.Tensor:
        loss: torch.Tensor = self.draft(batch)
        print(f"step {self.global_step + 1} loss {loss.item():.4f} {' '.join(batch.sample_ids)}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train, then save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", type=Path, required=True)
    given = parser.parse_args()
    dataset = e3.open_dataset(given.url)
    loader = e3.StreamingLoader(dataset, token_budget=1024, seed=0)
    trainer = lightning.Trainer(
        max_steps=given.steps,
        accelerator="auto",
        devices=1,
        use_distributed_sampler=False,  # the loader divides the samples itself
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    # Lightning saves and restores whatever loader has state_dict, which ours has.
    trainer.fit(
        Module(dataset.manifest),
        loader,
        ckpt_path=given.save if given.save.exists() else None,
        weights_only=False,
    )
    trainer.save_checkpoint(given.save)


if __name__ == "__main__":
    main()
