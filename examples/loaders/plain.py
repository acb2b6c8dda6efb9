"""Plain PyTorch, one process or under torchrun; what it saves holds the place in the data too.

    python examples/loaders/plain.py URL --steps 20 --save run.pt
    torchrun --nproc-per-node 2 examples/loaders/plain.py URL --steps 20 --save run.pt

Run again with more steps, it goes on where it stopped, with another number of ranks as well.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from draft import Draft
from torch.nn.parallel import DistributedDataParallel

import eagle3data as e3


def main() -> None:
    """Train, then save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", type=Path, required=True)
    given = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    rank = 0
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if has_gpu else "gloo")
        rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else None

    dataset = e3.open_dataset(given.url)
    # Rank and world size are torch.distributed's. With a device, batches arrive on it.
    loader = e3.StreamingLoader(dataset, token_budget=1024, seed=0, device=device)
    draft = Draft(dataset.manifest).to(device)
    trained = DistributedDataParallel(draft) if dist.is_initialized() else draft
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    step = 0
    if given.save.exists():
        saved = torch.load(given.save, map_location=device)
        draft.load_state_dict(saved["draft"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]

    while step < given.steps:
        for batch in loader:  # what is left of this epoch, then the next one
            loss = trained(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} {' '.join(batch.sample_ids)}")
            if step == given.steps:
                break

    if rank == 0:  # the loader's state is the same on every rank
        state = {"draft": draft, "optimizer": optimizer, "loader": loader}
        torch.save({**{k: it.state_dict() for k, it in state.items()}, "step": step}, given.save)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
