"""Ray Train: each worker has a loader of its own rank; reports carry the place in the data.

    python examples/loaders/with_ray_train.py URL --steps 20 --save FOLDER --workers 2

URL and FOLDER must be reached by every node. Run again with more steps, it goes on where it
stopped, with another number of workers as well.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig

import eagle3data as e3


def train(given: dict[str, Any]) -> None:
    """One worker; torch.distributed is set up when this begins."""
    sys.path.insert(0, given["here"])
    from draft import Draft

    dataset = e3.open_dataset(given["url"])
    loader = e3.StreamingLoader(dataset, token_budget=1024, seed=0)
    draft = Draft(dataset.manifest)
    trained = ray.train.torch.prepare_model(draft)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=1e-3)
    parts = {"draft": draft, "optimizer": optimizer, "loader": loader}
    step = 0
    save = Path(given["save"], "state.pt")
    if save.exists():
        saved = torch.load(save, map_location="cpu")
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        step = saved["step"]

    rank = ray.train.get_context().get_world_rank()
    device = ray.train.torch.get_device()
    while step < given["steps"]:
        for batch in loader:
            loss = trained(batch.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"rank {rank} step {step} loss {loss.item():.4f} {' '.join(batch.sample_ids)}")
            if step == given["steps"]:
                break

    with tempfile.TemporaryDirectory() as folder:
        states = {name: part.state_dict() for name, part in parts.items()}
        if rank == 0:
            torch.save({**states, "step": step}, Path(folder, "state.pt"))
        report = Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({"step": step, "loss": loss.item()}, checkpoint=report)


def main() -> None:
    """Train, then save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    result = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={
            **vars(given),
            "save": str(given.save),
            "here": str(Path(__file__).parent),
        },
        scaling_config=ScalingConfig(num_workers=given.workers, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(storage_path=str(given.save.resolve()), name="runs"),
    ).fit()
    if result.checkpoint is None:
        sys.exit(f"nothing was saved in {given.save}")
    result.checkpoint.to_directory(given.save)


if __name__ == "__main__":
    main()
