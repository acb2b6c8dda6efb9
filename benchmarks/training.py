"""A training step on synthetic states, against the time that its matrix products need.

The step is the trainer's own (`trainer.learner`): copy to the device, teacher, unrolled draft,
loss, gradients, clipping, optimiser. Ways to compute it are compared in one run, and so is the
rate of one big matrix product of this machine, which everything is measured against.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
import traceback
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3data.readers.batch import Batch
from eagle3data.storage.model_weights import TargetHead
from eagle3data.trainer.config import load_config
from eagle3data.trainer.draft import Draft, DraftConfig
from eagle3data.trainer.learner import Learner, Subject
from eagle3data.trainer.shift import MaskAlignment
from eagle3data.trainer.ttt import Speed, find_pairs

KINDS = {
    "attention": ("flex_attention", "flash", "fmha"),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "_mm"),
    "optimiser, clipping": ("adam", "multi_tensor", "lpnorm"),
    "copies": ("memcpy", "memset"),
}
"""Which kernels a name belongs to; the rest is element by element (norms, SiLU, softmax...)."""


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one pack's matrix products, by part: (forward, backward)."""

    parts: dict[str, tuple[float, float]]
    formulas: dict[str, str]

    @property
    def total(self) -> float:
        return sum(forward + backward for forward, backward in self.parts.values())


def count_work(shape: DraftConfig, batch: Batch, steps: int) -> Work:
    """Count what must be multiplied, a multiplication and an addition as two operations.

    Gradients take two products for each one of the forward pass, but for `fc`, whose input needs
    none, and the teacher. What an implementation computes again or masks away isn't counted.
    T rows of a pack, R of them unrolled (the others only give step 0's keys and values), S steps,
    P kept pairs (row, step), K positions where the target is asked.
    """
    pairs = find_pairs(batch, steps, MaskAlignment.SERVING)
    tokens, rows, hidden = len(batch.input_ids), len(pairs.rows), shape.hidden_size
    query = shape.num_attention_heads * shape.head_dim
    qkv = query + 2 * shape.num_key_value_heads * shape.head_dim
    seen = float((batch.position_ids[pairs.rows] + 1).double().sum())  # keys of step 0, all rows
    visible = steps * seen + rows * steps * (steps - 1) / 2
    read = tokens + (steps - 1) * rows
    once = {
        "fc": (2.0 * tokens * 3 * hidden**2, "2 T 3H H"),
        "embeddings' half of q, k, v": (2.0 * tokens * hidden * qkv, "2 T H (A + 2 KV) D"),
        "hidden half of q, k, v": (2.0 * read * hidden * qkv, "2 (T + (S-1) R) H (A + 2 KV) D"),
        "attention": (4.0 * query * visible, "4 A D (S sum_R (position + 1) + R S (S-1) / 2)"),
        "o": (2.0 * steps * rows * query * hidden, "2 S R A D H"),
        "mlp": (6.0 * steps * rows * hidden * shape.intermediate_size, "2 S R 3 H I"),
        "lm_head": (2.0 * len(pairs.base) * hidden * shape.draft_vocab_size, "2 P H Vd"),
        "teacher": (2.0 * len(pairs.positions) * hidden * shape.vocab_size, "2 K H V"),
    }
    backward = dict.fromkeys(once, 2.0) | {"fc": 1.0, "teacher": 0.0}
    return Work(
        parts={name: (flops, backward[name] * flops) for name, (flops, _) in once.items()},
        formulas={name: formula for name, (_, formula) in once.items()},
    )


def make_packs(arguments: argparse.Namespace, count: int) -> list[Batch]:
    """Packs of random states in page-locked memory, as the loader would hand them out."""
    generator = torch.Generator().manual_seed(0)
    packs = []
    for _ in range(count):
        lengths = cut(arguments.budget, arguments.document, generator)
        sizes = torch.tensor(lengths)
        positions = torch.cat([torch.arange(length) for length in lengths])
        own = sizes.repeat_interleave(sizes)
        shape = (4, arguments.budget, arguments.hidden)
        states = torch.randn(shape, device=arguments.device, dtype=torch.float16).cpu()
        packs.append(
            Batch(
                hidden_states=states.pin_memory() if arguments.device == "cuda" else states,
                layers=[2, 30, 58, 61],
                input_ids=torch.randint(
                    arguments.vocab, (arguments.budget,), generator=generator
                ).int(),
                loss_mask=(positions >= own * (1 - arguments.mask_share)).byte(),
                position_ids=positions.int(),
                document_ids=torch.arange(len(lengths)).repeat_interleave(sizes).int(),
                cu_seqlens=torch.tensor([0, *sizes.cumsum(0)], dtype=torch.int32),
                sample_ids=[f"s{number}" for number in range(len(lengths))],
            )
        )
    return packs


def cut(budget: int, mean: int, generator: torch.Generator) -> list[int]:
    """Document lengths of half to one and a half times the mean that fill the budget."""
    lengths = []
    while budget > 0:
        length = int(torch.randint(max(1, mean // 2), 3 * mean // 2 + 1, (1,), generator=generator))
        lengths.append(min(length, budget))
        budget -= lengths[-1]
    return lengths


def make_subject(arguments: argparse.Namespace, shape: DraftConfig, speed: Speed) -> Subject:
    """A draft and a target's head of random weights, on the device."""
    device = torch.device(arguments.device)
    torch.manual_seed(0)  # every variant begins with the same numbers
    matrix = (arguments.vocab, arguments.hidden)
    with device:
        embeddings = torch.empty(matrix, dtype=speed.dtype).normal_()
        head = TargetHead(
            norm_weight=torch.ones(arguments.hidden),
            norm_eps=1e-6,
            norm_offset=0,
            lm_head=torch.empty(matrix, dtype=speed.dtype).normal_(std=0.02),
        )
        draft = Draft(shape, embeddings)
        draft_ids = torch.randperm(arguments.vocab)[: arguments.draft_vocab].sort().values
    return Subject(
        draft=draft,
        head=head,
        draft_ids=draft_ids,
        commonest_token=0,
        post_norm=False,
        device=device,
        speed=speed,
    )


class Clock:
    """Times the parts of steps: with events on a GPU, whose work runs behind, else at once."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def start(self) -> None:
        self._marks.clear()
        self.mark("start")

    def mark(self, name: str) -> None:
        now: Any = time.perf_counter()
        if self._cuda:
            now = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            now.record()
        self._marks.append((name, now))

    def seconds(self) -> dict[str, float]:
        """By part, since the mark before it."""
        spent: dict[str, float] = defaultdict(float)
        for (_, began), (name, ended) in zip(self._marks, self._marks[1:], strict=False):
            spent[name] += began.elapsed_time(ended) / 1e3 if self._cuda else ended - began
        return dict(spent)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure_peak(device: str, dtype: torch.dtype, size: int) -> float:
    """FLOP/s of one big square product of random matrices."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(4):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(10):
            torch.mm(left, right)
        synchronize(device)
        times.append((time.perf_counter() - began) / 10)
    return float(2 * size**3 / statistics.median(times[1:]))


def run_variant(
    name: str, arguments: argparse.Namespace, shape: DraftConfig, speed: Speed, packs: list[Batch]
) -> dict[str, Any]:
    """Time one way of computing the step."""
    device = arguments.device
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    settings = [f"train.ttt_steps={arguments.ttt}", f"data.token_budget={arguments.budget}"]
    clock = Clock(device)
    subject = make_subject(arguments, shape, speed)
    learner = Learner(subject, load_config(None, settings), mark=clock.mark)
    synchronize(device)
    began = time.perf_counter()
    first = learner.learn([packs[0]], 1e-5)
    for number in range(1, arguments.warmup):
        learner.learn([packs[number % len(packs)]], 1e-5)
    synchronize(device)
    warmed = time.perf_counter() - began
    times = []
    parts: dict[str, list[float]] = defaultdict(list)
    for number in range(arguments.steps):
        synchronize(device)
        began = time.perf_counter()
        clock.start()
        learner.learn([packs[number % len(packs)]], 1e-5)
        synchronize(device)
        times.append(time.perf_counter() - began)
        for part, seconds in clock.seconds().items():
            parts[part].append(seconds)
    return {
        "variant": name,
        "seconds": statistics.median(times),
        "spread": max(times) - min(times),
        "warmup_seconds": warmed,
        "first_loss": first["loss"],
        "first_grad_norm": first["grad_norm"],
        "memory_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "parts": {part: statistics.median(seconds) for part, seconds in parts.items()},
        "kernels": profile(learner, packs[0]) if device == "cuda" else {},
    }


def profile(learner: Learner, pack: Batch) -> dict[str, float]:
    """Seconds of one step's kernels by kind, and how long the GPU had none."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=activities) as profiler:
            learner.learn([pack], 1e-5)
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    work = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
    spent: dict[str, float] = defaultdict(float)
    for event in work:
        name = event["name"].lower()
        kinds = (kind for kind, marks in KINDS.items() if any(mark in name for mark in marks))
        spent[next(kinds, "element by element")] += event["dur"] / 1e6
    first, last = min(e["ts"] for e in work), max(e["ts"] + e["dur"] for e in work)
    spent["idle"] = max(0.0, (last - first) / 1e6 - sum(spent.values()))
    longest = sorted(work, key=lambda event: event["dur"], reverse=True)[:12]
    for event in longest:
        print(f"    {event['dur'] / 1e3:8.2f} ms  {event['name'][:100]}")
    return dict(spent)


def print_work(work: Work, peak: float, tokens: int) -> None:
    print("\nmatrix products of a pack, forward + backward, TFLOP:")
    for name, (forward, backward) in work.parts.items():
        print(f"  {name:28} {forward / 1e12:9.3f} + {backward / 1e12:9.3f}   {work.formulas[name]}")
    bound = work.total / peak
    print(
        f"  total {work.total / 1e12:.3f} TFLOP; at the peak of {peak / 1e12:,.2f} TFLOP/s "
        f"it takes {bound:.4f} s, {tokens / bound:,.0f} tokens/s"
    )


def print_variant(found: dict[str, Any], work: Work, peak: float, tokens: int) -> None:
    memory = found["memory_bytes"]
    print(
        f"\n{found['variant']}: {found['seconds']:.4f} s a step (spread {found['spread']:.4f}), "
        f"{tokens / found['seconds']:,.0f} tokens/s, "
        f"{100 * work.total / peak / found['seconds']:.1f} % of peak"
        + (f", {memory / 2**30:.1f} GiB at most" if memory else "")
        + f"; warm-up {found['warmup_seconds']:.1f} s; first loss {found['first_loss']:.5f}, "
        f"its gradient's norm {found['first_grad_norm']:.5f}"
    )
    for title in ("parts", "kernels"):
        total = sum(found[title].values()) or 1.0
        for name, seconds in sorted(found[title].items(), key=lambda item: -item[1]):
            print(f"  {title:8} {name:22} {seconds * 1e3:9.2f} ms  {100 * seconds / total:5.1f} %")


def variants(arguments: argparse.Namespace) -> dict[str, Speed]:
    """Ways to compute the step, the best first: time may run out."""
    dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    cuda = arguments.device == "cuda"
    compile_it = cuda or arguments.compile
    found = {
        "flex, compiled": Speed(dtype=dtype, flex=True, compile=True),
        "flex, compiled, checkpointing": Speed(
            dtype=dtype, flex=True, compile=True, checkpoint=True
        ),
        "flex": Speed(dtype=dtype, flex=True),
        "plain, compiled": Speed(dtype=dtype, compile=True),
        "plain": Speed(dtype=dtype),
        "plain, checkpointing": Speed(dtype=dtype, checkpoint=True),
    }
    usable = {
        name: speed
        for name, speed in found.items()
        if (cuda or not speed.flex) and (compile_it or not speed.compile)
    }
    return {n: s for n, s in usable.items() if not arguments.variant or n in arguments.variant}


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--intermediate", type=int, default=18432)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--key-value-heads", type=int, default=64)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=163_840)
    parser.add_argument("--draft-vocab", type=int, default=32_000)
    parser.add_argument("--budget", type=int, default=8192, help="tokens of a pack")
    parser.add_argument("--document", type=int, default=2048, help="mean length")
    parser.add_argument("--mask-share", type=float, default=1.0, help="tokens that carry loss")
    parser.add_argument("--ttt", type=int, default=7, help="training-time-test steps")
    parser.add_argument("--steps", type=int, default=6, help="timed, of each variant")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--peak-tflops", type=float, default=None, help="not measured then")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="compiled variants on a CPU too")
    parser.add_argument("--variant", action="append", help="only these")
    parser.add_argument("--seconds", type=float, default=150, help="begin no variant after")
    parser.add_argument("--json", type=Path, default=None, help="write the figures there")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, return the figures."""
    began = time.perf_counter()
    arguments = read_arguments(words)
    shape = DraftConfig(
        hidden_size=arguments.hidden,
        intermediate_size=arguments.intermediate,
        num_attention_heads=arguments.heads,
        num_key_value_heads=arguments.key_value_heads,
        head_dim=arguments.head_dim,
        vocab_size=arguments.vocab,
        draft_vocab_size=arguments.draft_vocab,
    )
    cuda = arguments.device == "cuda"
    name = torch.cuda.get_device_name() if cuda else "CPU"
    dtype = torch.bfloat16 if cuda else torch.float32
    peak = (arguments.peak_tflops or 0) * 1e12
    how = "given"
    if not peak:
        size = 8192 if cuda else 1024
        peak, how = measure_peak(arguments.device, dtype, size), f"a {size}^3 product, measured"
    print(f"torch {torch.__version__}, {name}; peak {peak / 1e12:.2f} TFLOP/s ({how})")
    packs = make_packs(arguments, 2)
    works = [count_work(shape, pack, arguments.ttt) for pack in packs]
    work = works[0]
    print_work(work, peak, arguments.budget)
    figures: list[dict[str, Any]] = []
    for title, speed in variants(arguments).items():
        if time.perf_counter() - began > arguments.seconds:
            print(f"\n{title}: not begun, {arguments.seconds:.0f} s have passed")
            continue
        try:
            found = run_variant(title, arguments, shape, speed, packs)
        except RuntimeError:  # out of memory, or a compiler: the other variants still count
            print(f"\n{title}: failed\n{traceback.format_exc()}")
            continue
        print_variant(found, work, peak, arguments.budget)
        figures.append(found)
    report = {
        "torch": torch.__version__,
        "device": name,
        "peak_flops": peak,
        "flops": work.total,
        "tokens": arguments.budget,
        "draft": shape.model_dump(mode="json"),
        "variants": figures,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return report


if __name__ == "__main__":
    main()
