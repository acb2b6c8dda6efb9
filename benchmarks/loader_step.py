"""The trainer's own step in front of the loader: how long it waits for a batch."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch._dynamo.utils import counters as dynamo_counters

from benchmarks.loader_figures import ON_GPU, Results, synchronize
from eagle3data.readers.batch import Batch
from eagle3data.trainer.config import load_config
from eagle3data.trainer.inputs import gather
from eagle3data.trainer.loop import Run

_WARM_UP_STEPS, _QUIET_STEPS = 60, 6


def real_step(url: str, folder: Path, options: argparse.Namespace, results: Results) -> None:
    """The trainer's step, on the loader's batches and on one batch again and again, in turns."""
    target = write_target(folder / "target", options.hidden, options.vocabulary)
    draft_vocabulary = min(32_000, options.vocabulary)
    settings = [
        f"model.draft_vocab_size={draft_vocabulary}",
        f"data.token_budget={options.step_budget}",
        "data.train_split=null",
        "data.eval_split=null",
        "data.allow_other_target=true",
        "train.max_steps=100000",
        f"train.device={'cuda' if ON_GPU else 'cpu'}",
    ]
    inputs = gather(url, str(target), load_config(None, settings))
    out = folder / "run"
    out.mkdir()
    run = Run(inputs, out, lambda _: None)
    loader = inputs.loader
    batches = chain.from_iterable(iter(loader) for _ in repeat(None))
    fixed = next(batches)
    results.tell(f"a draft of {sum(p.numel() for p in inputs.draft.parameters()) / 1e9:.2f} B")
    _warm_up(run, lambda: next(batches), results)
    seconds: dict[str, list[float]] = {"loader": [], "one batch": []}
    waiting: list[float] = []
    for _ in range(options.step_rounds):
        seconds["one batch"] += [_step(run, lambda: fixed)[1] for _ in range(options.steps)]
        for _ in range(options.steps):
            waited, whole = _step(run, lambda: next(batches))
            waiting.append(waited / whole)
            seconds["loader"].append(whole)
    base = statistics.median(seconds["one batch"])
    for name, taken in seconds.items():
        median = statistics.median(taken)
        results.add(
            f"real step: {name}",
            f"{median * 1e3:8.1f} ms ({min(taken) * 1e3:.1f} to {max(taken) * 1e3:.1f}), "
            f"{median / base:.3f} of one batch's",
            milliseconds=[one * 1e3 for one in taken],
            of_one_batch=median / base,
        )
    share = sum(w * s for w, s in zip(waiting, seconds["loader"], strict=True))
    results.add(
        "real step: waiting for a batch",
        f"{share / sum(seconds['loader']):.3%} of the time (largest step {max(waiting):.3%}); the "
        f"loader says: {loader.metrics}",
        share=share / sum(seconds["loader"]),
        stalled_on_device=loader.metrics.stalled,
        seconds=loader.metrics.seconds,
    )
    if ON_GPU:
        peak = torch.cuda.max_memory_allocated()
        results.add("real step: memory", f"{peak / 1e9:.1f} GB on the GPU at most", bytes=peak)


def _warm_up(run: Run, fetch: Callable[[], Batch], results: Results) -> None:
    """Steps until several in a row found everything compiled."""
    compiled, quiet, steps = dynamo_counters["stats"], 0, 0
    while quiet < _QUIET_STEPS and steps < _WARM_UP_STEPS:
        before = compiled["unique_graphs"]
        _, seconds = _step(run, fetch)
        quiet = quiet + 1 if compiled["unique_graphs"] == before else 0
        steps += 1
    results.add(
        "real step: warm-up",
        f"{steps} steps, {compiled['unique_graphs']} compiled graphs; the last: {seconds:.2f} s",
        steps=steps,
        graphs=compiled["unique_graphs"],
    )


def _step(run: Run, fetch: Callable[[], Batch]) -> tuple[float, float]:
    """Seconds until there is a batch, and of the whole step, the GPU's work included."""
    synchronize()
    began = time.perf_counter()
    batch = fetch()
    waited = time.perf_counter() - began
    run.train_step([batch])
    synchronize()
    return waited, time.perf_counter() - began


def write_target(folder: Path, hidden: int, vocabulary: int) -> Path:
    """A model folder with what the trainer reads of a target; the weights are noise."""
    folder.mkdir()
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden * 18 // 7,
        "num_hidden_layers": 61,
        "num_attention_heads": hidden // 112 if hidden >= 112 else 1,
        "num_key_value_heads": 8 if hidden >= 1024 else 1,
        "head_dim": 128,
        "vocab_size": vocabulary,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    block = torch.randn(min(vocabulary, 4096), hidden).mul_(0.02).to(torch.bfloat16)
    rows = block.repeat(-(-vocabulary // len(block)), 1)[:vocabulary]
    tensors = {
        "model.embed_tokens.weight": rows.contiguous(),
        "lm_head.weight": rows.flip(0).contiguous(),
        "model.norm.weight": torch.ones(hidden),
    }
    save_file(tensors, folder / "model.safetensors")
    return folder
