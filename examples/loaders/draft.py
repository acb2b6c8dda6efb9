"""A stand-in for your draft: what the examples train, so that they are about the loader only."""

from __future__ import annotations

import torch
from torch import nn

import eagle3data as e3


class Draft(nn.Module):
    """Guesses the final layer's states from those of the layers before."""

    def __init__(self, manifest: e3.Manifest) -> None:
        """Take the sizes from a data set's manifest."""
        super().__init__()
        aux = len(manifest.layers) - 1
        self.fc = nn.Linear(aux * manifest.hidden_size, manifest.hidden_size)

    def forward(self, batch: e3.Batch) -> torch.Tensor:
        """Mean squared error over the positions that a loss is for."""
        states = batch.hidden_states.float()  # [layers, T, hidden]
        aux, final = states[:-1].movedim(0, 1).flatten(1), states[-1]
        kept = batch.loss_mask.bool()
        return nn.functional.mse_loss(self.fc(aux)[kept], final[kept])
