"""Checkpoints: everything a run needs to go on as if it had never stopped, whole or not there.

A run's folder holds `step-00000200/` folders and `checkpoints.json`, which names the last and
the best of them. A folder is complete before it gets its name, and named before the pointer
moves, so a kill at any moment leaves the checkpoint before it.
"""

from __future__ import annotations

import io
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3data.schema.errors import InputError, MismatchError
from eagle3data.schema.target import read_json
from eagle3data.trainer.files import new_folder, write_json
from eagle3data.trainer.saved import DESCRIPTION, SavedDraft, read_draft, write_draft

POINTERS = "checkpoints.json"
_OPTIMIZER = "optimizer.pt"
_STATE = "state.json"
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run at the end of a step.

    Attributes:
        step: optimiser steps done; the schedule is a function of it.
        draft: float32 parameters, vocabulary, description.
        optimizer: the optimisers' state by parameter name.
        random: random generator states by device (`cpu`, `cuda`).
        loader: the training loader's `state_dict`.
        identity: what a resuming run must share, `name: value`.
        history: held-out metrics at the start, the best so far, tokens seen (plain JSON).
    """

    step: int
    draft: SavedDraft
    optimizer: dict[str, Any]
    random: dict[str, torch.Tensor]
    loader: dict[str, Any]
    identity: dict[str, Any]
    history: dict[str, Any]

    def check_identity(self, identity: dict[str, Any], out: Path) -> None:
        """Refuse to continue a run that was another one.

        Raises:
            MismatchError: names what differs.
        """
        differing = [
            f"{name} was {self.identity.get(name)!r}, now it is {value!r}"
            for name, value in identity.items()
            if self.identity.get(name) != value
        ]
        if differing:
            raise MismatchError(
                f"{out} holds a run that differs from this one: {'; '.join(differing)}. Continue "
                "it with its own data and settings, or give another --out."
            )


def random_states() -> dict[str, torch.Tensor]:
    """States of torch's generators; the package draws from no other."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, torch.Tensor]) -> None:
    """Put back what `random_states` returned."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def save(out: Path, checkpoint: Checkpoint, *, best: bool) -> Path:
    """Write a checkpoint as the last one, and as the best one too if it is.

    Raises:
        SpaceError: the disk is full; the checkpoints that were there stay.
    """
    pointers = _pointers(out)
    folder = out / f"step-{checkpoint.step:08d}"
    if folder.name not in pointers.values():
        shutil.rmtree(folder, ignore_errors=True)  # named, but its pointer was never written
        with new_folder(folder) as partial:
            write_draft(partial, checkpoint.draft)
            tensors = io.BytesIO()
            torch.save({"optimizer": checkpoint.optimizer, "random": checkpoint.random}, tensors)
            (partial / _OPTIMIZER).write_bytes(tensors.getbuffer())
            state = {
                "version": _VERSION,
                "step": checkpoint.step,
                "loader": checkpoint.loader,
                "identity": checkpoint.identity,
                "history": checkpoint.history,
            }
            write_json(partial / _STATE, state)
    pointers["last"] = folder.name
    if best:
        pointers["best"] = folder.name
    write_json(out / POINTERS, pointers)
    for old in out.glob("step-*"):
        if old.name not in pointers.values():
            shutil.rmtree(old)
    return folder


def load_last(out: Path) -> Checkpoint | None:
    """The checkpoint that a run in this folder continues from; None where there is none.

    Raises:
        InputError: a checkpoint that can't be read.
    """
    last = _pointers(out).get("last")
    if last is None:
        return None
    folder = out / last
    state = read_json(folder / _STATE)
    if state.get("version") != _VERSION:
        raise InputError(
            f"{folder} is a checkpoint of version {state.get('version')}, expected {_VERSION}."
        )
    draft = read_draft(folder)
    try:
        tensors = torch.load(folder / _OPTIMIZER, map_location="cpu", weights_only=True)
        return Checkpoint(
            step=state["step"],
            draft=draft,
            optimizer=tensors["optimizer"],
            random=tensors["random"],
            loader=state["loader"],
            identity=state["identity"],
            history=state["history"],
        )
    except (OSError, EOFError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{folder} is a damaged checkpoint ({type(error).__name__}: {error}). Put back a copy "
            "of it, or train again into another --out."
        ) from None


def find_draft(path: Path) -> Path:
    """The folder with a draft's files, given a checkpoint or a run (then its best, or its last).

    Raises:
        InputError: neither of them.
    """
    if (path / DESCRIPTION).is_file():
        return path
    pointers = _pointers(path)
    name = pointers.get("best") or pointers.get("last")
    if name is None:
        raise InputError(
            f"{path} is neither a run's folder ({POINTERS}) nor a checkpoint ({DESCRIPTION})."
        )
    return path / name


def _pointers(out: Path) -> dict[str, str]:
    return read_json(out / POINTERS) if (out / POINTERS).is_file() else {}
