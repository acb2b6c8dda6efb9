"""vLLM's states against transformers', layer by layer, on conversations.

    python -m benchmarks.vllm_states CONVERSATIONS.jsonl --model MODEL [--compute-dtype bfloat16]

Everything is extracted; samples of all lengths are recomputed, one at a time and unbatched. In
float32 each layer's relative error is shown, in bfloat16 quantiles over rows: there, rows with
massive activations differ between any two ways to compute them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from rich.console import Console
from rich.table import Table

from eagle3data import Sample, open_dataset
from eagle3data.extractor.prepare import prepare


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="eagle3data-states-") as folder:
        prompts, url = Path(folder, "prompts.arrow"), Path(folder, "set")
        prepare([options.conversations], options.model, prompts)
        command = [sys.executable, "-m", "eagle3data.cli.main", "extract", str(prompts)]
        command += ["--model", options.model, "--out", str(url), "--engine", "vllm"]
        command += ["--compute-dtype", options.compute_dtype]
        for argument in options.engine_arg or []:
            command += ["--engine-arg", argument]
        subprocess.run(command, check=True)
        dataset = open_dataset(str(url))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=getattr(torch, options.compute_dtype)
        ).eval()
        lengths = dataset.index["length"].to_numpy()
        order = np.argsort(lengths)
        chosen = order[np.linspace(0, len(order) - 1, min(options.samples, len(order))).astype(int)]
        errors: dict[int, list[npt.NDArray[np.float32]]] = {k: [] for k in dataset.manifest.layers}
        for position in chosen.tolist():
            sample = dataset[position]
            for layer, expected in reference(model, sample, dataset.manifest.layers).items():
                stored = sample.hidden_states[layer].astype(np.float32)
                norms = np.linalg.norm(expected, axis=1)
                errors[layer].append(np.linalg.norm(stored - expected, axis=1) / norms)
    _show(options.compute_dtype, lengths, chosen, errors)


def reference(model: Any, sample: Sample, layers: list[int]) -> dict[int, npt.NDArray[np.float32]]:
    """A sample's states by transformers: what enters layer k is `hidden_states[k]`, and what leaves
    the last layer, before the norm, only a hook sees."""
    final: list[torch.Tensor] = []

    def keep(_module: Any, _args: Any, output: Any) -> None:
        final.append(output[0] if isinstance(output, tuple) else output)

    hook = model.model.layers[-1].register_forward_hook(keep)
    with torch.inference_mode():
        ids = torch.from_numpy(sample.input_ids.astype(np.int64))[None]
        output = model(input_ids=ids, output_hidden_states=True, use_cache=False)
    hook.remove()
    count = len(model.model.layers)
    found = {k: output.hidden_states[k][0] for k in layers if k < count}
    if count in layers:
        found[count] = final[0].reshape(len(sample), -1)
    return {layer: value.float().numpy() for layer, value in found.items()}


def _show(
    dtype: str,
    lengths: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
    errors: dict[int, list[npt.NDArray[np.float32]]],
) -> None:
    table = Table(box=None, header_style="bold")
    names = ("layer", "rows", "median", "90 %", "99 %", "largest")
    for name in names:
        table.add_column(name, justify="right")
    for layer, found in errors.items():
        rows = np.concatenate(found)
        quantiles = (f"{value:.1e}" for value in np.quantile(rows, [0.5, 0.9, 0.99, 1]))
        table.add_row(str(layer), f"{len(rows):,}", *quantiles)
    console = Console(width=100)
    console.print(
        f"{dtype}: {len(lengths):,} samples, {lengths.sum():,} tokens extracted; recomputed: "
        f"{len(chosen)} samples of {lengths[chosen].min():,} to {lengths[chosen].max():,} tokens. "
        "A row's error relative to its norm:"
    )
    console.print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("conversations")
    parser.add_argument("--model", required=True)
    parser.add_argument("--compute-dtype", default="float32")
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--engine-arg", action="append")
    return parser.parse_args()


if __name__ == "__main__":
    main()
